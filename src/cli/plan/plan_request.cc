#include "cli/plan/plan_request.h"

#include <algorithm>

#include "base/error.h"
#include "cli/flag_parser.h"
#include "cli/terminal/train_report.h"
#include "cli/threads.h"
#include "settings/derived.h"
#include "settings/fsdp/fsdp_settings.h"
#include "tokenizer/tokenizer.h"
#include "train/setup/job_size.h"

namespace tessera {
namespace {

ModelConfig shape_of(const PlanRequest& request, const FlagTable& table) {
  if (request.given.model.folder.empty() == request.preset.empty()) {
    fail(ExitCode::kUsage, "give either --model DIR (or its config.json) or --preset NAME{}",
         request.preset.empty() ? "" : ", not both");
  }
  if (request.preset.empty()) return read_model_config(request.given.model.folder);
  ModelConfig config = preset_config(request.preset);
  if (config.vocab_size != 0) return config;
  config.vocab_size = request.given.model.tokenizer.empty() || table.is_set("vocab_size")
                          ? request.vocab_size
                          : Tokenizer::open(request.given.model.tokenizer).vocab_size();
  return config;
}

}  // namespace

ModelConfig PlanRequest::model_config(const FlagTable& table) const {
  ModelConfig config = shape_of(*this, table);
  check_wrapped_classes(given.sources.fsdp, config);
  config.lora = lora_config_of(given.lora, given.model, config);
  config.base_quantization = base_quantization_of(given.base);
  return config;
}

void PlanRequest::check_device_flags(const FlagTable& table) const {
  if (!is_on_device()) return;
  for (const char* name : {"disk", "network", "network_gbps", "tflops", "mfu", "nnodes", "nproc_per_node"}) {
    if (!table.is_set(name)) continue;
    fail(ExitCode::kUsage, "--{} is not available with --device {}, which plans for a single card", name,
         given.machine.device);
  }
}

std::optional<JobSize> PlanRequest::job(const RunSpec& spec, const ModelConfig& config, int64_t ranks) const {
  const bool reads_data = !tokens && !spec.data.dataset.empty();
  TerminalReport report{TerminalOptions()};
  return job_size(spec, config, ranks, tokens, reads_data ? threads_for_pool(spec.machine.num_threads) : 1,
                  report);
}

JobSize PlanRequest::job_or_assumed(const RunSpec& spec, const ModelConfig& config, int64_t ranks) const {
  return job(spec, config, ranks).value_or(assumed_job(spec, config, ranks));
}

PlanMachine PlanRequest::machine_for(const RunSpec& spec) const {
  PlanMachineFlags flags = machine;
  if (!flags.memory_bytes) flags.memory_bytes = given.placement.fit_memory_bytes;
  return plan_machine(flags, spec, flags.name_this_machine() ? threads_for_products() : 1);
}

int64_t PlanRequest::threads_of_rank(const PlanMachine& on) const {
  if (given.machine.num_threads > 0) return given.machine.num_threads;
  return std::max<int64_t>(1, on.num_cores / local_world_size);
}

ClusterShape PlanRequest::cluster_of(const PlanMachine& on, int64_t nodes) const {
  ClusterShape cluster = on.cluster;
  cluster.num_nodes = static_cast<int>(nodes);
  cluster.local_world_size = static_cast<int>(local_world_size);
  return cluster;
}

void PlanningCommand::declare_run(FlagTable* table) {
  declare_training_flags(table, &request_.given);
  num_training_flags_ = table->flags().size();
  list_only(table,
            "model tokenizer dataset packing max_length num_train_epochs max_steps config deepspeed "
            "per_device_train_batch_size gradient_accumulation_steps global_batch_size dtype "
            "gradient_checkpointing gradient_checkpointing_mode merge_micro_batches optim "
            "optimizer_in_backward clip_mode offload_param_device pack_weights "
            "offload_optimizer_device offload_dir fit fit_choice fit_memory fit_disk finetuning_type "
            "lora_rank lora_target device num_threads measure_peak zero_stage gather_schedule "
            "grad_accum_dtype zero_quantized_weights zero_quantized_gradients");
  table->begin_section("Plan");
  declare(table, "preset", &request_.preset).value_name = preset_value_name();
  declare(table, "vocab_size", &request_.vocab_size);
  declare(table, "tokens", &request_.tokens);
  declare(table, "json", &request_.json);
  declare(table, "catalogue", &request_.machine.catalogue);
}

void PlanningCommand::declare_machine(FlagTable* table) {
  table->begin_section("Machine");
  declare(table, "machine", &request_.machine.machine);
  declare_size(table, "memory", &request_.machine.memory_bytes, "64GiB");
  declare(table, "network_gbps", &request_.machine.network_gbps);
  declare(table, "network", &request_.machine.network);
  declare(table, "disk_gb_per_s", &request_.machine.disk_gb_per_s);
  declare(table, "tflops", &request_.machine.tflops);
  declare(table, "mfu", &request_.machine.mfu);
}

void PlanningCommand::declare_ranks(FlagTable* table) {
  declare(table, "nnodes", &request_.num_nodes);
  declare(table, "nproc_per_node", &request_.local_world_size);
}

void PlanningCommand::complete_flags(FlagTable* table) {
  for (const Flag* flag : given_of_first(*table, num_training_flags_))
    request_.given_flags.push_back({flag->name, flag->get()});
  read_setting_files(table, &request_.given);
}

}  // namespace tessera
