// The parts of a ParameterStore: one for each choice that layout/placement.h makes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "model/trainable_model.h"
#include "optim/state_place.h"
#include "platform/thread_pool.h"
#include "shard/gradients/gradient_path.h"
#include "shard/layout/owned_pieces.h"
#include "shard/layout/placement.h"
#include "shard/update/backward_update.h"
#include "shard/weights/weight_place.h"

namespace tessera {

class DeviceState;
class DeviceWindow;
class GradientStore;
class OuterUpdate;
class RingOfGradients;
class WeightStore;

struct StoreParts {
  // Parameters as the ParameterStore's. Without the window, and without the outer update.
  StoreParts(TrainableModel& trained, const ZeroSettings& of_job, std::unique_ptr<const Optimizer> optimizer,
             bool decay_all, Communicator& job, ThreadPool& threads, int64_t ring_elements);
  ~StoreParts();  // where the parts' types are complete
  StoreParts(const StoreParts&) = delete;
  StoreParts& operator=(const StoreParts&) = delete;

  bool is_on_device() const {
    return placement.weights == WeightChoice::kOnDevice || placement.weights == WeightChoice::kHostUpdated;
  }
  // Whether weights are always at their index in weights->memory().
  bool keeps_weights_in_memory() const { return placement.weights != WeightChoice::kLayerFile; }
  // The first parameter with a gradient that is not finite among these elements of a group.
  std::string not_finite_in(int64_t group, const Part& elements) const;
  // Call when ranks have new weights.
  void weights_changed();

  TrainableModel& model;
  ThreadPool& pool;
  std::unique_ptr<Communicator> node_comm;  // where nodes train on their own
  Communicator& comm;                       // of the ranks that share one copy of the state
  ZeroSettings settings;
  Placement placement;
  ZeroLayout layout;
  ShardPlan plan;
  OwnedPieces pieces;
  int node_rank;       // in the job
  bool sums_products;  // the model's products add up the squares of gradients:
  double squares = 0;

  std::unique_ptr<WeightPlace> weights;
  std::unique_ptr<GradientPath> gradients;
  std::unique_ptr<RingOfGradients> ring;  // of an update by the host of a device
  std::vector<int64_t> first_range;       // of the state, by group, plus the end
  std::unique_ptr<StatePlace> state;
  std::unique_ptr<UpdateRule> update;
  std::unique_ptr<DeviceWindow> window;

  // The parts above, where they are of these kinds; otherwise null.
  WeightStore* node_weights = nullptr;
  GradientStore* reduced_gradients = nullptr;
  OptimizerState* host_state = nullptr;
  DeviceState* device_state = nullptr;
  BackwardUpdate* backward = nullptr;
  OuterUpdate* outer = nullptr;

 private:
  void make_weights();
  void make_gradients();
  // Also makes the update, which depends on where the gradients of the ranges are.
  void make_state(std::unique_ptr<const Optimizer> optimizer, bool decay_all, int64_t ring_elements);
  void make_update(std::vector<ParameterRange> ranges);
  std::vector<ParameterRange> optimizer_ranges(bool decay_all) const;
  GroupUpdate group_update() { return {plan, comm.world().rank, first_range, *state, *weights}; }
};

}  // namespace tessera
