// What --fit chooses before the run is planned.
#include <algorithm>

#include "arguments/offload_arguments.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/first_failure.h"
#include "plan/time/measured_prices.h"
#include "train/trainer.h"
#include "train/work_mark.h"

namespace tessera {
namespace {

// Settings that change the numbers of a run: a resumed one keeps its own.
constexpr const char* kKeptOnResume[] = {"optim", "clip_mode"};

}  // namespace

LadderRequest Trainer::ladder_request(const BatchPlanOptions& batch, const DataFacts& data) {
  LadderRequest request;
  request.args = args_;
  request.config = model_->config();
  request.batch = batch;
  request.data = data;
  request.mean_row_tokens =
      std::max<int64_t>(1, data_->train.num_tokens() / std::max<int64_t>(1, data_->train.num_rows()));
  request.machine = machine_facts();
  request.num_threads = pool_.num_threads();
  std::optional<double> tflops;
  if (plan_.peak) tflops = plan_.peak->tflops / world().num_nodes;
  request.rates =
      rates_of_this_processor(tflops, pool_.num_threads() * world().local_world_size, model_->dtype());
  const std::filesystem::path folder = args_.offload_dir.empty() ? args_.output_dir : args_.offload_dir;
  request.free_disk_bytes = free_disk_bytes(folder);
  if (!args_.fit_disk.empty()) {
    request.free_disk_bytes = std::min(request.free_disk_bytes, *parse_bytes(args_.fit_disk));
  }
  request.holds_model = share_disk(folder, args_.output_dir);
  return request;
}

void Trainer::choose_form(const BatchPlanOptions& batch, const DataFacts& data) {
  const OpLabel label = {"form of the run"};
  mark_work(comm_, "choosing the form of the run", 1);
  const PatientScope patience(comm_);
  // Snapshots in memory are of one optimizer.
  if (args_.peer_snapshot_steps > 0) args_.given.insert("optim");
  if (*resume_) {
    const Json& then = resume_->record().arguments;
    FlagTable table;
    declare_training_flags(&table, &args_);
    for (const char* name : kKeptOnResume) {
      const auto value = then.find(name);
      if (value == then.end() || !value->is_string() || args_.given.contains(name)) continue;
      table.set(*table.find(name), {value->get<std::string>()}, resume_->checkpoint_parent().string());
      args_.given.insert(name);
    }
  }
  const int64_t free_bytes = -comm_.max(-machine_facts().free_bytes, label);
  const int64_t disk_bytes = -comm_.max(-free_disk_bytes(args_.offload_dir), label);
  Form form;
  const std::optional<Error> error = outside_error([&] {
    if (!is_root()) return;
    LadderRequest request = ladder_request(batch, data);
    disk_rate_ = try_disk_rate(args_.offload_dir, transfer_settings(args_));
    if (disk_rate_) request.rates.disk_gb_per_s = disk_rate_->gb_per_s();
    request.machine.free_bytes = free_bytes;
    request.free_disk_bytes = std::min(request.free_disk_bytes, disk_bytes);
    const Ladder ladder = plan_ladder(request);
    if (!ladder.best) {
      fail(ExitCode::kBadConfig, "fit: {}", ladder_refusal(ladder, plan_lora_ladder(request)));
    }
    form = ladder.rungs[*ladder.best].form;
    log_info("fit: {}", choice_text(ladder));
  });
  if (const auto told = first_error(comm_, error, label)) fail(told->code, "{}", told->message);
  args_ = with_form(args_, comm_.broadcast(form, 0, label), world().world_size);
  args_.fit = true;
  record_.arguments = Json::parse(training_arguments_json(args_));
}

}  // namespace tessera
