#include "shard/store_parts.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "shard/gradients/device_gradients.h"
#include "shard/gradients/gradient_ring.h"
#include "shard/gradients/gradient_store.h"
#include "shard/gradients/open_gradients.h"
#include "shard/layout/first_not_finite.h"
#include "shard/outer/outer_update.h"
#include "shard/state/device_state.h"
#include "shard/update/update_beside_step.h"
#include "shard/weights/device_weights.h"
#include "shard/weights/device_window.h"
#include "shard/weights/streamed_weights.h"
#include "shard/weights/weight_store.h"

namespace tessera {
namespace {

// A rank alone adds gradients up in float32, and nodes that train apart see only themselves.
ZeroSettings settings_of_node(ZeroSettings settings, DType weight_dtype, const Optimizer& optimizer,
                              const World& world) {
  settings.weight_dtype = weight_dtype;
  settings.state_tensors = optimizer.state_tensors();
  settings.outer.reset();
  if (world.is_single()) settings.gradient_dtype = DType::kF32;
  return settings;
}

}  // namespace

StoreParts::StoreParts(TrainableModel& trained, const ZeroSettings& of_job,
                       std::unique_ptr<const Optimizer> optimizer, bool decay_all, Communicator& job,
                       ThreadPool& threads, int64_t ring_elements)
    : model(trained),
      pool(threads),
      node_comm(of_job.outer ? Communicator::of_node(job) : nullptr),
      comm(node_comm ? *node_comm : job),
      settings(settings_of_node(of_job, model.dtype(), *optimizer, comm.world())),
      placement(placement_of(of_job, comm.world().world_size, model.device().own_memory().has_value())),
      layout(zero_layout(model.layout(), comm.world().num_nodes, comm.world().local_world_size)),
      plan(shard_plan(layout, settings)),
      pieces(plan, comm.world().rank, /*of_rail=*/of_job.stage == 0),
      node_rank(job.world().node_rank),
      // A product that adds up squares on a device makes the host wait for it.
      sums_products(placement.is_single && !placement.device_window) {
  const char* const refusal = why_not(placement);
  TESSERA_CHECK(refusal == nullptr, "parameters in places that do not go together: {}", refusal);
  make_weights();
  make_gradients();
  make_state(std::move(optimizer), decay_all, ring_elements);
}

StoreParts::~StoreParts() = default;

void StoreParts::make_weights() {
  switch (placement.weights) {
    case WeightChoice::kInNode: {
      auto in_node = std::make_unique<WeightStore>(layout, settings, plan, comm, pool);
      node_weights = in_node.get();
      weights = std::move(in_node);
      return;
    }
    case WeightChoice::kLayerFile:
      weights =
          std::make_unique<StreamedWeights>(model.layout(), model.dtype(), *settings.weight_folder, pool);
      return;
    case WeightChoice::kOnDevice:
      weights = std::make_unique<DeviceWeights>(model);
      return;
    case WeightChoice::kHostUpdated:
      weights = std::make_unique<HostUpdatedWeights>(model, pool);
      return;
  }
}

void StoreParts::make_gradients() {
  const GradientPath::OnSum on_sum = [this](int64_t group) { update->gradients_complete(group); };
  const bool is_consumed = placement.gradients == GradientChoice::kConsumedInBackward;
  if (placement.gradients == GradientChoice::kOnDevice) {
    gradients = std::make_unique<DeviceGradients>(model);
  } else if (is_consumed && placement.is_single) {
    gradients = std::make_unique<OpenGradients>(layout, pool, on_sum);
  } else {
    auto reduced = std::make_unique<GradientStore>(layout, settings, plan, comm, pool,
                                                   is_consumed ? on_sum : GradientPath::OnSum());
    reduced_gradients = reduced.get();
    gradients = std::move(reduced);
  }
}

// The intersections of parameters and pieces: alignment gaps belong to no parameter.
std::vector<ParameterRange> StoreParts::optimizer_ranges(bool decay_all) const {
  std::vector<ParameterRange> ranges;
  for (const OwnedPieces::Piece& piece : pieces.pieces()) {
    for (const Parameter& parameter : model.layout().parameters()) {
      const Part common =
          intersection(piece.elements, {parameter.offset, parameter.offset + parameter.num_elements});
      if (common.size() == 0) continue;
      ranges.push_back({weights->index(piece.group, common.begin), common.size(),
                        decay_all || parameter.weight_decay, gradients->index(piece.group, common.begin),
                        piece.state_of(common.begin), common.begin, shape_of(parameter)});
    }
  }
  return ranges;
}

void StoreParts::make_state(std::unique_ptr<const Optimizer> optimizer, bool decay_all,
                            int64_t ring_elements) {
  std::vector<ParameterRange> ranges = optimizer_ranges(decay_all);
  ConstTensorView sums = gradients->gradients();
  if (placement.update == UpdateChoice::kBesideNextStep) {
    ring = std::make_unique<RingOfGradients>(
        model.device(), gradient_ring(layout, optimizer->state_tensors(), ring_elements), pool);
    ranges = ring->cut(ranges);
    sums = ring->memory();
  }
  // Elements of the flat array ascend with the ranges.
  for (int64_t group = 0; group <= plan.num_groups(); ++group) {
    const int64_t begin = group < plan.num_groups() ? plan.group(group).begin : INT64_MAX;
    const auto first = std::ranges::lower_bound(ranges, begin, {}, &ParameterRange::first_element);
    first_range.push_back(first - ranges.begin());
  }
  if (placement.state == StateChoice::kOnDevice) {
    auto on_device = std::make_unique<DeviceState>(model, std::move(optimizer), std::move(ranges),
                                                   weights->memory(), sums);
    device_state = on_device.get();
    state = std::move(on_device);
    update = std::make_unique<UpdateAfterStep>(group_update());
    return;
  }
  std::optional<StateFileSettings> file;
  if (placement.state == StateChoice::kFile) {
    file = settings.state_folder;
    file->path /= fmt::format("rank-{}.state", comm.world().rank);
  }
  auto on_host = std::make_unique<OptimizerState>(std::move(optimizer), ranges, weights->memory(), sums, pool,
                                                  pieces.num_elements(), file);
  host_state = on_host.get();
  state = std::move(on_host);
  make_update(std::move(ranges));
}

void StoreParts::make_update(std::vector<ParameterRange> ranges) {
  switch (placement.update) {
    case UpdateChoice::kAfterStep:
      update = std::make_unique<UpdateAfterStep>(group_update());
      return;
    case UpdateChoice::kInBackward: {
      auto in_backward = std::make_unique<BackwardUpdate>(
          group_update(), *host_state, sums_products ? &squares : nullptr,
          [this](int64_t group) { return not_finite_in(group, plan.part(group, comm.world().rank)); });
      backward = in_backward.get();
      update = std::move(in_backward);
      return;
    }
    case UpdateChoice::kBesideNextStep:
      update = std::make_unique<UpdateBesideStep>(group_update(), static_cast<HostUpdatedWeights&>(*weights),
                                                  gradients->gradients(), *ring, std::move(ranges));
      return;
  }
}

std::string StoreParts::not_finite_in(int64_t group, const Part& elements) const {
  for (const Parameter& parameter : model.layout().parameters()) {
    const Part common = intersection(elements, {parameter.offset, parameter.offset + parameter.num_elements});
    if (common.size() == 0) continue;
    const int64_t begin = gradients->index(group, common.begin);
    if (first_not_finite(gradients->gradients().rows(begin, begin + common.size()))) return parameter.name;
  }
  return "";
}

void StoreParts::weights_changed() {
  weights->finish_updates();
  if (window) window->weights_changed();
  model.weights_changed();
}

}  // namespace tessera
