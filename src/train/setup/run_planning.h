// The second part of a run's setup: its steps, its sharding, and whether they fit.
#pragma once

#include <cstdint>

#include "data/dataset.h"
#include "plan/run_planner.h"
#include "train/setup/run_setup.h"

namespace tessera {

// Sets what follows from the data: batch, lengths, rows, schedule, actions and the steps of the plan.
void plan_steps_of(RunInputs& inputs);
// Collective: completes the plan of a run of this form, and reports it to the observers. Error(kBadConfig) if
// the memory of a node or a disk is too small.
void make_plan(RunSetup& setup);

// Tokens of the rows that an epoch takes; of a mixture, the mean over all epochs. 0 if rows are streamed.
int64_t tokens_of_epoch(const Dataset& dataset);

// The machine that a plan is for. Free memory is what every node has, or fit_memory. Collective.
MachineResources machine_resources(const RunInputs& inputs);

}  // namespace tessera
