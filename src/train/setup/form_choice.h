// The choice that --fit makes before a run is planned.
#pragma once

#include "data/rows/batch_plan.h"
#include "forecast/fit/fit_options.h"
#include "plan/run_planner.h"
#include "train/setup/run_setup.h"

namespace tessera {

// The options of forecast/fit on this node; the rate of its disk is not measured.
FitRequest fit_request(const RunSetup& setup, const BatchPlanOptions& batch, const RowLengths& data,
                       const MachineResources& machine);

// Collective: rank 0 chooses for the nodes with the least memory and disk; setup.spec becomes the chosen
// one's. A resumed run keeps settings that change its numbers. Error(kBadConfig) if nothing fits. Returns
// this rank's machine at the time: memory measured later may no longer hold the chosen form.
MachineResources choose_form(RunSetup& setup, const BatchPlanOptions& batch, const RowLengths& data);

}  // namespace tessera
