// A model's parameters as sharding counts them, and their places in memory that holds a few groups.
#pragma once

#include "model/trainable_model.h"
#include "shard/layout/device_window_places.h"
#include "shard/layout/weight_window.h"
#include "shard/layout/zero_memory.h"

namespace tessera {

ZeroLayout zero_layout(const ParameterLayout& layout, int num_nodes, int local_world_size);

// Where the weights beside adapters are; nothing without adapters.
LayerPlaces frozen_places(const TrainableModel& model, const ZeroSettings& settings);

// The places of the groups in use on the model's device, with ZeroSettings::parameters_on_host.
DeviceWindowPlaces trained_window(const TrainableModel& model);
DeviceWindowPlaces frozen_window(const TrainableModel& model);

}  // namespace tessera
