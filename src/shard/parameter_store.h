// Weights, gradients and optimizer state of a run, wherever they are: composed of one part for each choice
// that shard/layout/placement.h makes. Rajbhandari et al., ZeRO: memory optimizations toward training
// trillion parameter models, 2020.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/run_state.h"
#include "comm/communicator.h"
#include "formats/safetensors/safetensors.h"
#include "io/async_file.h"
#include "model/trainable_model.h"
#include "platform/thread_pool.h"
#include "shard/gradients/gradient_path.h"
#include "shard/gradients/gradient_ring.h"
#include "shard/layout/change_hook.h"
#include "shard/layout/load_once.h"
#include "shard/layout/owned_pieces.h"
#include "shard/layout/placement.h"
#include "shard/update/backward_update.h"
#include "shard/weights/weight_place.h"
#include "weights/model_folder.h"

namespace tessera {

class DeviceState;
class DeviceWindow;
class GradientStore;
class MasterExport;
class OuterUpdate;
class RingOfGradients;
class WeightStore;

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

  // Reads the weights. `progress` reports what this rank reads.
  void load(const SafetensorsModel& file, LoadOnce once,
            const std::function<void(const LoadProgress&)>& progress);

  // Called around every forward_backward() of a step; begin_pass() returns what the model should do with
  // gradients.
  WeightUpdate begin_pass(bool is_first, bool is_last);
  void end_pass();
  // Call before begin_pass() of a pass that is computed for a check alone: nothing but gradients changes in
  // it.
  void expect_rehearsal() { rehearses_ = true; }
  // After the last pass: this rank's contribution to the squared gradient norm.
  double gradient_squares() const;
  // A parameter with a non-finite gradient among those this rank has reduced; "" = none.
  std::string not_finite_gradient() const;
  // One update, group by group, calling `before_change` (if set) before each. No rank may still be using the
  // old weights. Afterwards the model has the new ones, or gets each group's when it opens it.
  void update(const OptimizerStep& step, const ChangeHook& before_change);
  // Completes an update that overlaps the passes after it. Not collective; settle_state() does the same.
  void finish_update() { update_->finish(); }
  // Seconds that such updates took since the last call, beyond those of update().
  double take_update_seconds() { return update_->take_seconds(); }
  // Instead of the update, where a step is given up or skipped: nothing of its gradients is kept.
  void discard_step();
  // The part that updates instead of update(); nullptr: the gradients of a step are kept until update().
  BackwardUpdate* backward_update() const { return backward_; }

  // Traffic between nodes since the last call that the rail does not count; without that of synchronize() and
  // settle_state(). Not collective.
  NetworkCounters take_network();
  // Transfers of the state and the weights that this rank keeps in files.
  AsyncFileStatistics state_file_statistics() const { return state_->file_statistics(); }
  AsyncFileStatistics weight_file_statistics() const { return weights_->file_statistics(); }
  // Frees the disk space of the state's tensors if they are in a file: only masters are read from now on. Not
  // collective.
  void discard_state_tensors() { state_->discard_tensors(); }

  // The tensors of the state, besides the master weights: the optimizer's, then kGradientFeedback or
  // kOuterMomentum where it is kept. The list outlives every checkpoint.
  StateTensors state_tensors() const { return state_tensors_; }
  // If nodes train on their own: gives all of them the same weights, the ones that are saved. `before_change`
  // as below.
  void synchronize(const ChangeHook& before_change);
  // Call after a step, before its state is read to be saved: ranks hand over to the owners what they hold for
  // elements of others. The run continues as one that resumes from what is saved, not as if nothing had been
  // saved. `before_change` (if set) is called before the state of owned elements changes.
  void settle_state(const ChangeHook& before_change);
  // The elements whose state this rank writes to checkpoints. Ranges ascend; over all ranks they cover the
  // flat array exactly once.
  std::vector<ElementRange> owned() const;
  // The elements whose state this rank keeps, which it needs to resume from a checkpoint: what it owns, and
  // in stage 0 what its whole rail owns.
  std::vector<ElementRange> kept() const { return pieces_.ranges(); }
  // Fills `values` with the state of elements of owned(). Not collective; may be called from several threads
  // at once, but not while these elements change.
  void read_state(StateKind kind, int64_t begin, std::span<float> values) const;
  // The state in the form in which checkpoints store it, as far as it is kept in that form.
  StoredSource stored_source() const;
  // Replaces the state of elements of kept(). Not collective; may be called from several threads for disjoint
  // ranges.
  void write_state(StateKind kind, int64_t begin, std::span<const float> values);
  // Call after write_state() of everything the ranks keep: gives the model these weights.
  void state_written();
  // For nodes without a shared folder: calls write() on rank 0 with the float32 master weights of all ranks,
  // to be read in ascending order. Exceptions from write() propagate there.
  void export_masters(const std::function<void(const WeightSource& source)>& write);

 private:
  Device& device() const override { return weights_->device(); }
  std::byte* open_weights(int64_t group, WeightUse use) override;
  void close_weights(int64_t group) override { weights_->close(group); }
  void reserve_packed_forms(std::span<const int64_t> bytes_by_group) override;
  std::byte* packed_forms(int64_t group) override { return weights_->packed_forms(group); }
  std::byte* open_gradients(int64_t group) override;
  void close_gradients(int64_t group) override { gradients_->close(group); }

  void make_weights();
  void make_gradients();
  // Also makes the update, which depends on where the gradients of the ranges are.
  void make_state(std::unique_ptr<const Optimizer> optimizer, bool decay_all, int64_t ring_elements);
  void make_update(std::vector<ParameterRange> ranges);
  void wrap_update(const ZeroSettings& settings, Communicator& job);
  void bind();
  std::vector<ParameterRange> optimizer_ranges(bool decay_all) const;
  GroupUpdate group_update() { return {plan_, comm_->world().rank, first_range_, *state_, *weights_}; }
  // The first parameter with a gradient that is not finite among these elements of a group.
  std::string not_finite_in(int64_t group, const Part& elements) const;
  // Call when ranks have new weights.
  void weights_changed();

  bool loads_whole_node(LoadOnce once) const;
  std::vector<ElementRange> ranges_to_load(LoadOnce once) const;
  void write_loaded(int64_t begin, std::span<const float> values);
  std::span<bf16> loaded_bf16(int64_t begin, int64_t count);
  bool is_feedback(StateKind kind) const;
  // Reads and writes the state that this rank keeps for its node.
  void read_node_state(StateKind kind, int64_t begin, std::span<float> values) const;
  void write_node_state(StateKind kind, int64_t begin, std::span<const float> values);
  void read_masters(int64_t begin, std::span<float> values) const;
  bool visit_stored_model(int64_t begin, int64_t count, const StoredBody& body) const;
  // Calls body(group, first element, first value, number of values) for the owned elements of [begin, begin +
  // count).
  template <typename Body>
  void for_each_owned(int64_t begin, int64_t count, const Body& body) const;

  TrainableModel* model_;
  ThreadPool* pool_;
  std::unique_ptr<Communicator> node_comm_;  // where nodes train on their own
  Communicator* comm_;
  ZeroSettings settings_;
  Placement placement_;
  ZeroLayout layout_;
  ShardPlan plan_;
  OwnedPieces pieces_;
  int node_rank_;           // in the job
  bool rehearses_ = false;  // the next pass
  bool sums_products_;      // the model's products add up the squares of gradients:
  double squares_ = 0;

  std::unique_ptr<WeightPlace> weights_;
  std::unique_ptr<GradientPath> gradients_;
  std::unique_ptr<RingOfGradients> ring_;  // of an update by the host of a device
  std::vector<int64_t> first_range_;       // of the state, by group, plus the end
  std::unique_ptr<StatePlace> state_;
  std::unique_ptr<UpdateRule> update_;
  std::vector<StateTensor> state_tensors_;
  std::unique_ptr<DeviceWindow> window_;
  std::unique_ptr<MasterExport> master_export_;

  // The parts above, where they are of these kinds; otherwise null.
  WeightStore* node_weights_ = nullptr;
  GradientStore* reduced_gradients_ = nullptr;
  OptimizerState* host_state_ = nullptr;
  DeviceState* device_state_ = nullptr;
  BackwardUpdate* backward_ = nullptr;
  OuterUpdate* outer_ = nullptr;
};

}  // namespace tessera
