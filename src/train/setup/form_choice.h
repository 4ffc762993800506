// The form of a run, as its settings have it or as --fit chooses it before the run is planned.
#pragma once

#include "forecast/fit/fit_options.h"
#include "plan/run_planner.h"
#include "train/setup/run_inputs.h"

namespace tessera {

struct RunForm {
  RunSpec spec;
  MachineResources machine;  // of this rank, before the form was chosen
};
// Collective: RunInputs::asked, or with fit what rank 0 chooses for the nodes with the least memory and disk.
// A resumed run then keeps settings that change its numbers. Error(kBadConfig) if nothing fits.
RunForm form_of_run(RunInputs& inputs);

// The options of forecast/fit on this node; the rate of its disk is not measured.
FitRequest fit_request(const RunInputs& inputs, const RunSpec& spec, const MachineResources& machine);

}  // namespace tessera
