// The optimizer that the arguments of a run ask for.
#pragma once

#include <memory>

#include "arguments/arguments.h"
#include "optim/optimizer.h"

namespace tessera {

std::unique_ptr<const Optimizer> make_optimizer(const TrainingArguments& args);
// Its list of state tensors, for plans.
StateTensors state_tensors_of(const TrainingArguments& args);

}  // namespace tessera
