// What a run shows of itself and how it is evaluated: logging_*, eval_*, metric_for_best_model,
// early_stopping_*.
#pragma once

#include "arguments/arguments.h"
#include "base/flags.h"

namespace tessera {

void declare_evaluation_flags(FlagTable* table, RunSpec* args);

}  // namespace tessera
