// Where a run keeps each kind of state: one value for each part of a ParameterStore.
#pragma once

#include <cstdint>

#include "shard/layout/zero_memory.h"

namespace tessera {

enum class WeightChoice {
  kInNode,      // memory that the ranks of a node share: all weights, or the node's parts and layers in use
  kLayerFile,   // decoder layers in a file, a few of them in memory
  kOnDevice,    // the model's device, which updates them
  kHostUpdated  // the model's device, with a copy that the host updates
};
enum class GradientChoice {
  kUntilUpdate,         // sums are kept until the update after the passes
  kConsumedInBackward,  // a group's exist until it is updated in the backward pass
  kOnDevice             // all of them, on the model's device, until the update
};
enum class StateChoice { kMemory, kFile, kOnDevice };
enum class UpdateChoice { kAfterStep, kInBackward, kBesideNextStep };

struct Placement {
  WeightChoice weights = WeightChoice::kInNode;
  GradientChoice gradients = GradientChoice::kUntilUpdate;
  StateChoice state = StateChoice::kMemory;
  UpdateChoice update = UpdateChoice::kAfterStep;
  bool device_window = false;  // a model on another device sees weights and gradients of the host through it
  bool nodes_train_apart = false;  // an outer update wraps each node's update
  bool is_single = true;           // one rank, of the job or of a node that trains apart
};

// The placement of a run with these settings. `world_size`: ranks that share one copy of the state;
// `has_device`: the model is on a device with memory of its own.
Placement placement_of(const ZeroSettings& settings, int world_size, bool has_device);

// Why the combination does not exist: the reason of the first rule that applies; nullptr if it does.
const char* why_not(const Placement& placement);

}  // namespace tessera
