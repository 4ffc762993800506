// The choice that --fit makes before a run is planned.
#pragma once

#include "data/rows/batch_plan.h"
#include "forecast/fit/fit_options.h"
#include "plan/run_planner.h"
#include "train/setup/run_setup.h"

namespace tessera {

// The options of forecast/fit on this node; the rate of its disk is not measured.
FitRequest fit_request(const RunSetup& setup, const BatchPlanOptions& batch, const DataFacts& data,
                       const MachineFacts& machine);

// Collective: rank 0 chooses for the node with the least memory and the one with the least disk; setup.spec
// become those of that form. A resumed run keeps what changes its numbers. Error(kBadConfig) if nothing fits.
// Returns this rank's machine as it was then: memory measured later may no longer hold the chosen form.
MachineFacts choose_form(RunSetup& setup, const BatchPlanOptions& batch, const DataFacts& data);

}  // namespace tessera
