// How the ranks of a run share its parameters, according to its arguments.
#pragma once

#include "formats/huggingface/model_config.h"
#include "settings/run_settings.h"
#include "shard/layout/zero_memory.h"

namespace tessera {

// `args` must be resolved. gather_schedule auto is per_step here: memory decides later.
ZeroSettings zero_settings_of(const RunSpec& args, const ModelConfig& config, int64_t passes_per_step);

// The tensors of the state of a run on so many nodes.
std::vector<StateTensor> saved_tensors_of(const RunSpec& args, int num_nodes);

// Whether gather_schedule auto becomes per_layer if memory is too short for per_step: in stage 3 with several
// nodes, unless packed weights were requested, which need per_step.
bool may_gather_per_layer(const RunSpec& args, int num_nodes);

}  // namespace tessera
