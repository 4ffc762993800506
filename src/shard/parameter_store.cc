#include "shard/parameter_store.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "shard/gradients/device_gradients.h"
#include "shard/gradients/gradient_store.h"
#include "shard/gradients/open_gradients.h"
#include "shard/layout/first_not_finite.h"
#include "shard/layout/model_places.h"
#include "shard/master_export.h"
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
ZeroSettings settings_of_node(ZeroSettings settings, DType weight_dtype, const World& world) {
  settings.weight_dtype = weight_dtype;
  settings.outer.reset();
  if (world.is_single()) settings.gradient_dtype = DType::kF32;
  return settings;
}

}  // namespace

ParameterStore::ParameterStore(TrainableModel& model, const ZeroSettings& settings,
                               std::unique_ptr<const Optimizer> optimizer, bool decay_all, Communicator& job,
                               ThreadPool& pool, int64_t ring_elements)
    : model_(&model),
      pool_(&pool),
      node_comm_(settings.outer ? Communicator::of_node(job) : nullptr),
      comm_(node_comm_ ? node_comm_.get() : &job),
      settings_(settings_of_node(settings, model.dtype(), comm_->world())),
      placement_(placement_of(settings, comm_->world().world_size, model.device().own_memory().has_value())),
      layout_(zero_layout(model.layout(), comm_->world().num_nodes, comm_->world().local_world_size)),
      plan_(shard_plan(layout_, optimizer->state_tensors())),
      pieces_(plan_, comm_->world().rank, /*of_rail=*/settings.stage == 0),
      node_rank_(job.world().node_rank),
      // A product that adds up squares on a device makes the host wait for it.
      sums_products_(placement_.is_single && !placement_.device_window) {
  const char* const refusal = why_not(placement_);
  TESSERA_CHECK(refusal == nullptr, "parameters in places that do not go together: {}", refusal);
  make_weights();
  make_gradients();
  make_state(std::move(optimizer), decay_all, ring_elements);
  const StateTensors of_optimizer = state_->optimizer().state_tensors();
  state_tensors_.assign(of_optimizer.begin(), of_optimizer.end());
  if (reduced_gradients_ != nullptr && reduced_gradients_->has_feedback())
    state_tensors_.push_back(kGradientFeedback);
  if (placement_.nodes_train_apart) wrap_update(settings, job);
  bind();
}

ParameterStore::~ParameterStore() {
  if (!placement_.is_single) comm_->rail().release_buffers();
}

void ParameterStore::make_weights() {
  switch (placement_.weights) {
    case WeightChoice::kInNode: {
      auto weights = std::make_unique<WeightStore>(layout_, settings_, plan_, *comm_, *pool_);
      node_weights_ = weights.get();
      weights_ = std::move(weights);
      return;
    }
    case WeightChoice::kLayerFile:
      weights_ = std::make_unique<StreamedWeights>(model_->layout(), model_->dtype(),
                                                   *settings_.weight_folder, *pool_);
      return;
    case WeightChoice::kOnDevice:
      weights_ = std::make_unique<DeviceWeights>(*model_);
      return;
    case WeightChoice::kHostUpdated:
      weights_ = std::make_unique<HostUpdatedWeights>(*model_, *pool_);
      return;
  }
}

void ParameterStore::make_gradients() {
  const GradientPath::OnSum on_sum = [this](int64_t group) { update_->gradients_complete(group); };
  const bool is_consumed = placement_.gradients == GradientChoice::kConsumedInBackward;
  if (placement_.gradients == GradientChoice::kOnDevice) {
    gradients_ = std::make_unique<DeviceGradients>(*model_);
  } else if (is_consumed && placement_.is_single) {
    gradients_ = std::make_unique<OpenGradients>(layout_, *pool_, on_sum);
  } else {
    auto gradients = std::make_unique<GradientStore>(layout_, settings_, plan_, *comm_, *pool_,
                                                     is_consumed ? on_sum : GradientPath::OnSum());
    reduced_gradients_ = gradients.get();
    gradients_ = std::move(gradients);
  }
}

// The intersections of parameters and pieces: alignment gaps belong to no parameter.
std::vector<ParameterRange> ParameterStore::optimizer_ranges(bool decay_all) const {
  std::vector<ParameterRange> ranges;
  for (const OwnedPieces::Piece& piece : pieces_.pieces()) {
    for (const Parameter& parameter : model_->layout().parameters()) {
      const Part common =
          intersection(piece.elements, {parameter.offset, parameter.offset + parameter.num_elements});
      if (common.size() == 0) continue;
      ranges.push_back({weights_->index(piece.group, common.begin), common.size(),
                        decay_all || parameter.weight_decay, gradients_->index(piece.group, common.begin),
                        piece.state_of(common.begin), common.begin, shape_of(parameter)});
    }
  }
  return ranges;
}

void ParameterStore::make_state(std::unique_ptr<const Optimizer> optimizer, bool decay_all,
                                int64_t ring_elements) {
  std::vector<ParameterRange> ranges = optimizer_ranges(decay_all);
  ConstTensorView gradients = gradients_->gradients();
  if (placement_.update == UpdateChoice::kBesideNextStep) {
    ring_ = std::make_unique<RingOfGradients>(
        model_->device(), gradient_ring(layout_, optimizer->state_tensors(), ring_elements), *pool_);
    ranges = ring_->cut(ranges);
    gradients = ring_->memory();
  }
  // Elements of the flat array ascend with the ranges.
  for (int64_t group = 0; group <= plan_.num_groups(); ++group) {
    const int64_t begin = group < plan_.num_groups() ? plan_.group(group).begin : INT64_MAX;
    const auto first = std::ranges::lower_bound(ranges, begin, {}, &ParameterRange::first_element);
    first_range_.push_back(first - ranges.begin());
  }
  if (placement_.state == StateChoice::kOnDevice) {
    auto state = std::make_unique<DeviceState>(*model_, std::move(optimizer), std::move(ranges),
                                               weights_->memory(), gradients);
    device_state_ = state.get();
    state_ = std::move(state);
    update_ = std::make_unique<UpdateAfterStep>(group_update());
    return;
  }
  std::optional<StateFileSettings> file;
  if (placement_.state == StateChoice::kFile) {
    file = settings_.state_folder;
    file->path /= fmt::format("rank-{}.state", comm_->world().rank);
  }
  auto state = std::make_unique<OptimizerState>(std::move(optimizer), ranges, weights_->memory(), gradients,
                                                *pool_, pieces_.num_elements(), file);
  host_state_ = state.get();
  state_ = std::move(state);
  make_update(std::move(ranges));
}

void ParameterStore::make_update(std::vector<ParameterRange> ranges) {
  switch (placement_.update) {
    case UpdateChoice::kAfterStep:
      update_ = std::make_unique<UpdateAfterStep>(group_update());
      return;
    case UpdateChoice::kInBackward: {
      auto update = std::make_unique<BackwardUpdate>(
          group_update(), *host_state_, sums_products_ ? &squares_ : nullptr,
          [this](int64_t group) { return not_finite_in(group, plan_.part(group, comm_->world().rank)); });
      backward_ = update.get();
      update_ = std::move(update);
      return;
    }
    case UpdateChoice::kBesideNextStep:
      update_ =
          std::make_unique<UpdateBesideStep>(group_update(), static_cast<HostUpdatedWeights&>(*weights_),
                                             gradients_->gradients(), *ring_, std::move(ranges));
      return;
  }
}

void ParameterStore::wrap_update(const ZeroSettings& settings, Communicator& job) {
  const InnerState node = {[this](StateKind kind, int64_t begin, std::span<float> values) {
                             read_node_state(kind, begin, values);
                           },
                           [this](StateKind kind, int64_t begin, std::span<const float> values) {
                             write_node_state(kind, begin, values);
                           },
                           [this] { state_written(); }};
  const World& world = job.world();
  auto outer = std::make_unique<OuterUpdate>(
      std::move(update_), node, state_tensors_.size(),
      zero_layout(model_->layout(), world.num_nodes, world.local_world_size), settings, job, *pool_);
  outer_ = outer.get();
  update_ = std::move(outer);
  state_tensors_.push_back(kOuterMomentum);
}

void ParameterStore::bind() {
  if (placement_.weights == WeightChoice::kOnDevice)
    return model_->bind_parameters(weights_->memory(), static_cast<DeviceGradients&>(*gradients_).memory());
  ParameterAccess& access = *this;
  if (!placement_.device_window) return model_->bind_parameters(access);
  // Where weights are fetched or read, the next group is waited for only once this one is computed with.
  const bool opens_ahead = placement_.weights == WeightChoice::kInNode && layout_.num_nodes == 1;
  window_ = std::make_unique<DeviceWindow>(model_->device(), access, trained_window(*model_), opens_ahead);
  for (const std::span<std::byte> memory : weights_->opened_memory()) window_->pin(memory);
  window_->pin(gradients_->opened_memory());
  model_->bind_parameters(*window_);
}

std::byte* ParameterStore::open_weights(int64_t group, WeightUse use) {
  update_->before_open(group);
  return weights_->open(group, use);
}

void ParameterStore::reserve_packed_forms(std::span<const int64_t> bytes_by_group) {
  const PackShare share = {comm_->world().local_rank, comm_->world().local_world_size};
  weights_->reserve_packed_forms(bytes_by_group, [this, share](int64_t group, std::byte* weights) {
    model_->pack_group(group, weights, share);
  });
}

std::byte* ParameterStore::open_gradients(int64_t group) {
  TESSERA_CHECK(!update_->is_pending(), "gradients of an update under way");
  return gradients_->open(group);
}

WeightUpdate ParameterStore::begin_pass(bool is_first, bool is_last) {
  TESSERA_CHECK(is_first || backward_ == nullptr, "a step has several passes");
  update_->begin_pass(is_last);
  const bool is_ignored = std::exchange(rehearses_, false) || (backward_ != nullptr && !backward_->updates());
  const Update mode = gradients_->begin_pass(is_first, is_last, is_ignored);
  if (!sums_products_) return mode;
  if (is_first) squares_ = 0;
  return {mode, is_last || backward_ != nullptr ? &squares_ : nullptr};
}

void ParameterStore::end_pass() {
  if (window_) window_->finish_gradients();
  gradients_->finish_pass();
  if (update_->end_pass()) weights_changed();
}

// In stage 0 every node has the same sums: only the first node's count.
double ParameterStore::gradient_squares() const {
  if (settings_.stage == 0 && comm_->world().node_rank > 0) return 0;
  if (backward_ != nullptr) return backward_->squares();
  if (sums_products_) return squares_;
  const double norm = host_state_->gradient_norm();
  return norm * norm;
}

std::string ParameterStore::not_finite_gradient() const {
  if (backward_ != nullptr) return backward_->not_finite();
  for (const OwnedPieces::Piece& piece : pieces_.pieces()) {
    if (const std::string name = not_finite_in(piece.group, piece.elements); !name.empty()) return name;
  }
  return "";
}

std::string ParameterStore::not_finite_in(int64_t group, const Part& elements) const {
  for (const Parameter& parameter : model_->layout().parameters()) {
    const Part common = intersection(elements, {parameter.offset, parameter.offset + parameter.num_elements});
    if (common.size() == 0) continue;
    const int64_t begin = gradients_->index(group, common.begin);
    if (first_not_finite(gradients_->gradients().rows(begin, begin + common.size()))) return parameter.name;
  }
  return "";
}

void ParameterStore::update(const OptimizerStep& step, const ChangeHook& before_change) {
  update_->update(step, before_change);
  weights_changed();
}

void ParameterStore::discard_step() {
  if (reduced_gradients_ != nullptr) reduced_gradients_->discard_feedback();
}

void ParameterStore::weights_changed() {
  weights_->finish_updates();
  weights_->changed();
  if (window_) window_->weights_changed();
  model_->weights_changed();
}

NetworkCounters ParameterStore::take_network() {
  return outer_ != nullptr ? outer_->take_network() : NetworkCounters();
}

void ParameterStore::synchronize(const ChangeHook& before_change) {
  if (outer_ != nullptr) outer_->synchronize(before_change);
}

void ParameterStore::settle_state(const ChangeHook& before_change) {
  update_->finish();
  if (outer_ != nullptr) return outer_->settle_state(before_change);
  if (reduced_gradients_ == nullptr) return;
  reduced_gradients_->settle_feedback([&] {
    if (!before_change) return;
    for (const ElementRange& range : owned()) before_change(range);
  });
}

}  // namespace tessera
