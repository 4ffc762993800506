// How the ranks of a run share its parameters, by its arguments.
#pragma once

#include "formats/model_config.h"
#include "train/arguments.h"
#include "zero/zero_memory.h"

namespace tessera {

// `args` must be resolved. gather_schedule auto is per_step here: memory decides later.
ZeroSettings zero_settings_of(const TrainingArguments& args, const ModelConfig& config,
                              int64_t passes_per_step);

}  // namespace tessera
