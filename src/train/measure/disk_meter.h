// Measures what the steps of a run move between memory and the files in offload_dir.
#pragma once

#include "model/trainable_model.h"
#include "report/disk_use.h"
#include "shard/parameter_store.h"
#include "shard/weights/frozen_weights.h"

namespace tessera {

class DiskMeter {
 public:
  // The arguments must outlive this; `frozen` is null without adapters.
  DiskMeter(const TrainableModel& model, const ParameterStore& parameters, const FrozenWeights* frozen)
      : model_(&model), parameters_(&parameters), frozen_(frozen) {}

  // Traffic of this rank since the last call.
  DiskUse take();

 private:
  const TrainableModel* model_;
  const ParameterStore* parameters_;
  const FrozenWeights* frozen_;
  DiskUse taken_;  // traffic up to the last call
};

}  // namespace tessera
