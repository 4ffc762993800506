#include "train/setup/form_choice.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "comm/first_failure.h"
#include "forecast/time/measured_costs.h"
#include "report/run_phase.h"
#include "settings/derived.h"
#include "train/setup/run_planning.h"

namespace tessera {
FitRequest fit_request(const RunSetup& setup, const BatchPlanOptions& batch, const RowLengths& data,
                       const MachineResources& machine) {
  const RunSpec& spec = setup.spec;
  FitRequest request;
  request.spec = spec;
  request.config = setup.model->config();
  request.batch = batch;
  request.data = data;
  request.mean_row_tokens =
      std::max<int64_t>(1, setup.plan.num_tokens / std::max<int64_t>(1, setup.plan.num_rows));
  request.machine = machine;
  request.num_threads = setup.pool.num_threads();
  std::optional<double> tflops;
  if (setup.plan.peak) tflops = setup.plan.peak->tflops / setup.world().num_nodes;
  request.rates = rates_of_this_processor(tflops, setup.pool.num_threads() * setup.world().local_world_size,
                                          setup.model->dtype());
  const std::filesystem::path folder =
      spec.placement.offload_dir.empty() ? spec.output_dir : spec.placement.offload_dir;
  request.free_disk_bytes = free_disk_bytes(folder);
  if (spec.placement.fit_disk_bytes) {
    request.free_disk_bytes = std::min(request.free_disk_bytes, *spec.placement.fit_disk_bytes);
  }
  request.holds_model = share_disk(folder, spec.output_dir);
  return request;
}

MachineResources choose_form(RunSetup& setup, const BatchPlanOptions& batch, const RowLengths& data) {
  RunSpec& spec = setup.spec;
  const OpLabel label = {"form of the run"};
  mark_phase(setup.comm, "choosing the form of the run", 1);
  const PatientScope patience(setup.comm);
  if (*setup.resume) {
    spec = continued(spec, setup.resume->record().arguments, setup.resume->checkpoint_parent().string());
  }
  // First: the memory of its threads stays with the process.
  if (setup.is_root()) setup.disk_rate = try_disk_rate(spec.placement.offload_dir, spec.placement.transfers);
  const MachineResources machine = machine_resources(setup);
  const int64_t disk_bytes = -setup.comm.max(-free_disk_bytes(spec.placement.offload_dir), label);
  FitCandidate candidate;
  const std::optional<Error> error = outside_error([&] {
    if (!setup.is_root()) return;
    FitRequest request = fit_request(setup, batch, data, machine);
    if (setup.disk_rate) request.rates.disk_gb_per_s = setup.disk_rate->gb_per_s();
    request.free_disk_bytes = std::min(request.free_disk_bytes, disk_bytes);
    const FitOptions options = fit_options(request);
    if (!options.best) {
      fail(ExitCode::kBadConfig, "fit: {}", fit_refusal(options, lora_fit_options(request)));
    }
    candidate = options.all[*options.taken()].candidate;
    log_info("fit: {}", choice_text(options));
  });
  if (const auto told = first_error(setup.comm, error, label)) fail(told->code, "{}", told->message);
  spec = with_candidate(spec, setup.comm.broadcast(candidate, 0, label), setup.world().world_size);
  spec.placement.fit = true;
  setup.set_base_quantization(base_quantization_of(spec.base));
  setup.record.arguments = training_arguments(spec);
  return machine;
}

}  // namespace tessera
