// The update of a step: after its passes, or group by group in a backward pass.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "optim/schedule.h"
#include "report/observer.h"
#include "report/progress.h"
#include "settings/run_settings.h"
#include "shard/parameter_store.h"
#include "train/output/checkpoint_saver.h"
#include "train/step/step_runner.h"

namespace tessera {

class StepUpdate {
 public:
  // Arguments passed by reference must outlive this; a checkpoint being written by `saver` keeps old values.
  StepUpdate(const ClippingSpec& clipping, bool in_backward, const Schedule& schedule,
             ParameterStore& parameters, StepRunner& runner, CheckpointSaver& saver, Communicator& comm)
      : clipping_(clipping),
        in_backward_(in_backward),
        schedule_(schedule),
        parameters_(parameters),
        runner_(runner),
        saver_(saver),
        comm_(comm) {}

  // Call before the passes of step `step` (from 0). If groups are updated in its only backward pass, before
  // its gradient norm is known, this begins the update.
  void begin_step(int64_t step, const Progress& progress);
  // Collective, after the passes: updates the remaining groups, and sets the times of the step. `first`: this
  // rank's results of the passes; `norm`: of the gradients. Error(kNumerics) if computing them again gives
  // something else.
  void finish_step(const RowLists& passes, const StepPart& first, double norm, const Progress& progress,
                   StepMetrics* metrics);

 private:
  bool updates_in_first_run(const Progress& progress) const;
  // norm: of the gradients, which clipping goes by.
  OptimizerStep optimizer_step(int64_t step, double norm, const Progress& progress) const;
  void begin_backward_update(int64_t step, double norm, const Progress& progress);
  void update_in_second_run(const RowLists& passes, const StepPart& first, StepMetrics* metrics);
  ChangeHook change_hook();

  const ClippingSpec clipping_;
  const bool in_backward_;  // optimizer_in_backward
  const Schedule& schedule_;
  ParameterStore& parameters_;
  StepRunner& runner_;
  CheckpointSaver& saver_;
  Communicator& comm_;
  bool has_begun_ = false;  // in the first run of this step
};

}  // namespace tessera
