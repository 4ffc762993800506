#include "cli/plan/plan_request.h"

#include <algorithm>

#include "base/error.h"
#include "settings/state/lora_settings.h"
#include "settings/state/quantization_settings.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

ModelConfig shape_of(const PlanRequest& request, const FlagTable& table) {
  if (request.args.model.folder.empty() == request.preset.empty()) {
    fail(ExitCode::kUsage, "give either --model DIR (or its config.json) or --preset NAME{}",
         request.preset.empty() ? "" : ", not both");
  }
  if (request.preset.empty()) return read_model_config(request.args.model.folder);
  ModelConfig config = preset_config(request.preset);
  if (config.vocab_size != 0) return config;
  config.vocab_size = request.args.model.tokenizer.empty() || table.is_set("vocab_size")
                          ? request.vocab_size
                          : Tokenizer::open(request.args.model.tokenizer).vocab_size();
  return config;
}

}  // namespace

ModelConfig PlanRequest::model_config(const FlagTable& table) const {
  ModelConfig config = shape_of(*this, table);
  config.lora = lora_config_of(args);
  config.base_quantization = base_quantization_of(args);
  return config;
}

PlanMachine PlanRequest::machine_for(const RunSpec& resolved) const {
  PlanMachineFlags flags = machine;
  if (!flags.memory_bytes) flags.memory_bytes = args.placement.fit_memory_bytes;
  return plan_machine(flags, resolved);
}

int64_t PlanRequest::threads_of_rank(const PlanMachine& on) const {
  if (args.machine.num_threads > 0) return args.machine.num_threads;
  return std::max<int64_t>(1, on.num_cores / local_world_size);
}

ClusterShape PlanRequest::cluster_of(const PlanMachine& on, int64_t nodes) const {
  ClusterShape cluster = on.cluster;
  cluster.num_nodes = static_cast<int>(nodes);
  cluster.local_world_size = static_cast<int>(local_world_size);
  return cluster;
}

}  // namespace tessera
