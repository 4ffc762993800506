#include "shard/parameter_store.h"

#include <utility>

#include "base/error.h"
#include "shard/gradients/device_gradients.h"
#include "shard/gradients/gradient_store.h"
#include "shard/layout/model_places.h"
#include "shard/outer/outer_update.h"
#include "shard/weights/device_window.h"

namespace tessera {

ParameterStore::ParameterStore(TrainableModel& model, const ZeroSettings& settings,
                               std::unique_ptr<const Optimizer> optimizer, bool decay_all, Communicator& job,
                               ThreadPool& pool, int64_t ring_elements)
    : parts_(model, settings, std::move(optimizer), decay_all, job, pool, ring_elements), state_(parts_) {
  if (parts_.placement.nodes_train_apart) state_.add_outer(settings, job);
  bind();
}

ParameterStore::~ParameterStore() {
  if (!parts_.placement.is_single) parts_.comm.rail().release_buffers();
}

Device& ParameterStore::device() const {
  return parts_.is_on_device() ? parts_.model.device() : host_device();
}

void ParameterStore::bind() {
  if (parts_.placement.weights == WeightChoice::kOnDevice)
    return parts_.model.bind_parameters(parts_.weights->memory(),
                                        static_cast<DeviceGradients&>(*parts_.gradients).memory());
  ParameterAccess& access = *this;
  if (!parts_.placement.device_window) return parts_.model.bind_parameters(access);
  // Where weights are fetched or read, the next group is waited for only once this one is computed with.
  const bool opens_ahead = parts_.placement.weights == WeightChoice::kInNode && parts_.layout.num_nodes == 1;
  parts_.window = std::make_unique<DeviceWindow>(parts_.model.device(), access, trained_window(parts_.model),
                                                 opens_ahead);
  for (const std::span<std::byte> memory : parts_.weights->opened_memory()) parts_.window->pin(memory);
  parts_.window->pin(parts_.gradients->opened_memory());
  parts_.model.bind_parameters(*parts_.window);
}

std::byte* ParameterStore::open_weights(int64_t group, WeightUse use) {
  parts_.update->before_open(group);
  return parts_.weights->open(group, use);
}

void ParameterStore::reserve_packed_forms(std::span<const int64_t> bytes_by_group) {
  const PackShare share = {parts_.comm.world().local_rank, parts_.comm.world().local_world_size};
  parts_.weights->reserve_packed_forms(bytes_by_group, [this, share](int64_t group, std::byte* weights) {
    parts_.model.pack_group(group, weights, share);
  });
}

std::byte* ParameterStore::open_gradients(int64_t group) {
  TESSERA_CHECK(!parts_.update->is_pending(), "gradients of an update under way");
  return parts_.gradients->open(group);
}

WeightUpdate ParameterStore::begin_pass(bool is_first, PassKind kind) {
  const bool is_last = kind == PassKind::kLastPass;
  TESSERA_CHECK(is_first || parts_.backward == nullptr, "a step has several passes");
  parts_.update->begin_pass(is_last);
  const bool is_ignored =
      kind == PassKind::kRehearsal || (parts_.backward != nullptr && !parts_.backward->updates());
  const Update mode = parts_.gradients->begin_pass(is_first, is_last, is_ignored);
  if (!parts_.sums_products) return mode;
  if (is_first) parts_.squares = 0;
  return {mode, is_last || parts_.backward != nullptr ? &parts_.squares : nullptr};
}

void ParameterStore::end_pass() {
  if (parts_.window) parts_.window->finish_gradients();
  parts_.gradients->finish_pass();
  if (parts_.update->end_pass()) parts_.weights_changed();
}

// In stage 0 every node has the same sums: only the first node's count.
double ParameterStore::gradient_squares() const {
  if (parts_.settings.stage == 0 && parts_.comm.world().node_rank > 0) return 0;
  if (parts_.backward != nullptr) return parts_.backward->squares();
  if (parts_.sums_products) return parts_.squares;
  const double norm = parts_.host_state->gradient_norm();
  return norm * norm;
}

std::string ParameterStore::not_finite_gradient() const {
  if (parts_.backward != nullptr) return parts_.backward->not_finite();
  for (const OwnedPieces::Piece& piece : parts_.pieces.pieces()) {
    if (const std::string name = parts_.not_finite_in(piece.group, piece.elements); !name.empty())
      return name;
  }
  return "";
}

void ParameterStore::update(const OptimizerStep& step, const ChangeHook& before_change) {
  parts_.update->update(step, before_change);
  parts_.weights_changed();
}

void ParameterStore::discard_step() {
  if (parts_.reduced_gradients != nullptr) parts_.reduced_gradients->discard_feedback();
}

NetworkCounters ParameterStore::take_network() {
  return parts_.outer != nullptr ? parts_.outer->take_network() : NetworkCounters();
}

StoreTransfers ParameterStore::transfers() const {
  return {parts_.state->file_statistics(), parts_.weights->file_statistics()};
}

}  // namespace tessera
