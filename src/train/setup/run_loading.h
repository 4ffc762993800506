// The third part of a run's setup: memory for weights, gradients and state, and their values.
#pragma once

#include "train/setup/run_setup.h"

namespace tessera {

// Collective: sets frozen, parameters and loading_peak_bytes, and reserves what the model needs for the
// planned passes. Values are those of the model folder, of an adapter, or of what the run resumes from.
void load_run(RunSetup& setup);

}  // namespace tessera
