// The third part of a run's setup: memory for weights, gradients and state, and their values.
#pragma once

#include "train/setup/run_setup.h"

namespace tessera {

// Collective: sets frozen, parameters and loading_peak_bytes, and reserves the model's memory for the planned
// passes. Values come from the model folder, from an adapter, or from the state the run resumes from.
void load_run(RunSetup& setup);

}  // namespace tessera
