// What a run shows of itself and how it is evaluated: logging_*, eval_*, metric_for_best_model,
// early_stopping_*.
#pragma once

#include "base/flags.h"
#include "settings/run_settings.h"

namespace tessera {

void declare_evaluation_flags(FlagTable* table, RunSpec* args);

}  // namespace tessera
