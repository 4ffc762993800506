// The optimizer that the arguments of a run ask for.
#pragma once

#include <memory>

#include "arguments/arguments.h"
#include "base/flags.h"
#include "optim/optimizer.h"

namespace tessera {

void declare_optim_flag(FlagTable* table, TrainingArguments* args);
// Those of Muon.
void declare_muon_flags(FlagTable* table, TrainingArguments* args);
// Error(kBadConfig) if the optimizer cannot be combined with other settings.
void check_optimizer(const FlagTable& table, const TrainingArguments& args);

std::unique_ptr<const Optimizer> make_optimizer(const TrainingArguments& args);
// Its list of state tensors, for plans.
StateTensors state_tensors_of(const TrainingArguments& args);

}  // namespace tessera
