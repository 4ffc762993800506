// The optimizer that the arguments of a run ask for.
#pragma once

#include "base/flags.h"
#include "optim/optimizer.h"
#include "settings/run_settings.h"

namespace tessera {

void declare_optim_flag(FlagTable* table, RunSpec* args);
// Those of Muon.
void declare_muon_flags(FlagTable* table, RunSpec* args);
// Error(kBadConfig) if the optimizer cannot be combined with other settings.
void check_optimizer(const FlagTable& table, const RunSpec& args);

}  // namespace tessera
