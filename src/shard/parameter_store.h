// Weights, gradients and optimizer state of a run, wherever they are: composed of one part for each choice
// that shard/layout/placement.h makes. Rajbhandari et al., ZeRO: memory optimizations toward training
// trillion parameter models, 2020.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/communicator.h"
#include "io/async_file.h"
#include "model/trainable_model.h"
#include "platform/thread_pool.h"
#include "shard/gradients/gradient_ring.h"
#include "shard/layout/change_hook.h"
#include "shard/store_parts.h"
#include "shard/store_state.h"
#include "shard/update/backward_update.h"

namespace tessera {

enum class PassKind {
  kPass,
  kLastPass,   // of a step
  kRehearsal,  // computed for a check alone: nothing but gradients changes
};

// Transfers between memory and the files in which a rank keeps state and weights.
struct StoreTransfers {
  AsyncFileStatistics state, weights;
};

// All operations are collective (every rank calls them in the same order) unless stated otherwise.
class ParameterStore final : private ParameterAccess {
 public:
  // Allocates, and binds the model to it. `settings` must be those the memory was planned with. Arguments
  // passed by reference must outlive this.
  ParameterStore(TrainableModel& model, const ZeroSettings& settings,
                 std::unique_ptr<const Optimizer> optimizer, bool decay_all, Communicator& job,
                 ThreadPool& pool, int64_t ring_elements = kRingElements);
  // Abandons transfers between nodes in progress when an error ends the rank.
  ~ParameterStore() override;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  // Called around every forward_backward() of a step; begin_pass() returns what the model should do with
  // gradients.
  WeightUpdate begin_pass(bool is_first, PassKind kind);
  void end_pass();
  // After the last pass: this rank's contribution to the squared gradient norm.
  double gradient_squares() const;
  // A parameter with a non-finite gradient among those this rank has reduced; "" = none.
  std::string not_finite_gradient() const;
  // One update, group by group, calling `before_change` (if set) before each. No rank may still be using the
  // old weights. Afterwards the model has the new ones, or gets each group's when it opens it.
  void update(const OptimizerStep& step, const ChangeHook& before_change);
  // Completes an update that overlaps the passes after it. Not collective; StoreState::settle() does the
  // same.
  void finish_update() { parts_.update->finish(); }
  // Seconds that such updates took since the last call, beyond those of update().
  double take_update_seconds() { return parts_.update->take_seconds(); }
  // Instead of the update, where a step is given up or skipped: nothing of its gradients is kept.
  void discard_step();
  // The part that updates instead of update(); nullptr: the gradients of a step are kept until update().
  BackwardUpdate* backward_update() const { return parts_.backward; }

  // Traffic between nodes since the last call that the rail does not count; without that of
  // StoreState::synchronize() and settle(). Not collective.
  NetworkCounters take_network();
  StoreTransfers transfers() const;

  // What is loaded, saved and resumed; not during a pass.
  StoreState& state() { return state_; }
  const StoreState& state() const { return state_; }

 private:
  Device& device() const override;
  std::byte* open_weights(int64_t group, WeightUse use) override;
  void close_weights(int64_t group) override { parts_.weights->close(group); }
  void reserve_packed_forms(std::span<const int64_t> bytes_by_group) override;
  std::byte* packed_forms(int64_t group) override { return parts_.weights->packed_forms(group); }
  std::byte* open_gradients(int64_t group) override;
  void close_gradients(int64_t group) override { parts_.gradients->close(group); }

  void bind();

  StoreParts parts_;
  StoreState state_;
};

}  // namespace tessera
