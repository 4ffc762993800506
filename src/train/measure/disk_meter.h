// Measures what the steps of a run move between memory and the files in offload_dir.
#pragma once

#include "model/trainable_model.h"
#include "train/measure/disk_use.h"
#include "train/parameters/parameter_state.h"

namespace tessera {

class DiskMeter {
 public:
  // Both must outlive this.
  DiskMeter(const TrainableModel& model, const ParameterState& parameters)
      : model_(&model), parameters_(&parameters) {}

  // What this rank has moved since the last call.
  DiskUse take();

 private:
  const TrainableModel* model_;
  const ParameterState* parameters_;
  DiskUse taken_;  // until the last call
};

}  // namespace tessera
