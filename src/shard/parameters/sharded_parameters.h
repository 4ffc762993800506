// Parameters sharded over the ranks of a job (ZeRO). Rajbhandari et al., ZeRO: memory optimizations toward
// training trillion parameter models, 2020.
#pragma once

#include <optional>
#include <vector>

#include "shard/gradients/gradient_store.h"
#include "shard/parameters/parameter_state.h"
#include "shard/weights/device_window.h"
#include "shard/weights/packed_weights.h"
#include "shard/weights/weight_store.h"

namespace tessera {

// What rank `rank` owns if parameters may be cut: its part of every group.
std::vector<ElementRange> owned_elements(const ParameterLayout& layout, int num_nodes, int local_world_size,
                                         int rank);

// With optimizer_in_backward a rank updates its part of a group as soon as the gradients of all ranks for it
// are summed up, and holds no others; the new weights are announced at the end of the pass.
class ShardedParameters : public ParameterState, private ParameterAccess, private BackwardUpdate {
 public:
  ShardedParameters(TrainableModel& model, const ZeroSettings& settings,
                    std::unique_ptr<const Optimizer> optimizer, bool decay_all, Communicator& comm,
                    ThreadPool& pool);
  // Abandons transfers between nodes in progress when an error ends the rank.
  ~ShardedParameters() override;
  ShardedParameters(const ShardedParameters&) = delete;
  ShardedParameters& operator=(const ShardedParameters&) = delete;

  void load(const SafetensorsModel& file, LoadOnce once,
            const std::function<void(const LoadProgress&)>& progress) override;
  WeightUpdate begin_pass(bool is_first, bool is_last) override;
  void end_pass() override;
  void expect_rehearsal() override { rehearses_ = true; }
  double gradient_squares() const override;
  std::string not_finite_gradient() const override;
  void update(const OptimizerStep& step, const ChangeHook& before_change) override;
  void discard_step() override { gradients_.discard_feedback(); }
  BackwardUpdate* backward_update() override { return settings_.optimizer_in_backward ? this : nullptr; }
  void discard_state_tensors() override { state_->discard_tensors(); }
  AsyncFileStatistics state_file_statistics() const override { return state_->file_statistics(); }
  StateTensors state_tensors() const override { return state_tensors_; }
  void export_masters(const std::function<void(const WeightSource&)>& write) override;
  void settle_state(const ChangeHook& before_change) override;
  std::vector<ElementRange> owned() const override;
  void read_state(StateKind kind, int64_t begin, std::span<float> values) const override;
  StoredSource stored_source() const override;
  std::vector<ElementRange> kept() const override;
  void write_state(StateKind kind, int64_t begin, std::span<const float> values) override;
  void state_written() override;

 private:
  // A contiguous range of the flat array whose optimizer state this rank keeps.
  struct Piece {
    int64_t group;
    Part elements;
    int64_t state_begin;
  };
  // Elements of a group that all ranks put into exchange_ at a time.
  struct Chunk {
    int64_t group;
    Part elements;
  };
  class MasterReader;

  std::byte* open_weights(int64_t group, WeightUse use) override;
  void close_weights(int64_t group) override;
  void reserve_packed_forms(std::span<const int64_t> bytes_by_group) override;
  std::byte* packed_forms(int64_t group) override;
  std::byte* open_gradients(int64_t group) override;
  void close_gradients(int64_t group) override;

  void begin(const OptimizerStep& step, double max_group_norm, ChangeHook before_change) override;
  void cancel() override { step_.reset(); }
  bool has_begun() const override { return has_begun_; }
  // From its beginning: what others have updated by then this rank does not know.
  bool is_under_way() const override { return updates_; }
  double seconds() const override { return seconds_; }

  void group_summed(int64_t group);
  // Own part of a group; `next` is the one to be updated after it.
  void update_group(int64_t group, int64_t next, const OptimizerStep& step, const ChangeHook& before_change);
  std::string not_finite_in(const Piece& piece) const;
  // Called when the model has new weights.
  void weights_changed();
  void plan_pieces();
  std::vector<ParameterRange> optimizer_ranges(bool decay_all);
  bool loads_whole_node(LoadOnce once) const;
  std::vector<ElementRange> ranges_to_load(LoadOnce once) const;
  void write_loaded(int64_t begin, std::span<const float> values);
  std::span<bf16> loaded_bf16(int64_t begin, int64_t count);
  const Piece* piece_of(int64_t group, int64_t element) const;
  // Calls body(element of owned weights, element of the state, first value, number of values) for each
  // piece's part of [begin, begin + count), all of which this rank must keep.
  template <typename Body>
  void for_each_part(int64_t begin, int64_t count, const Body& body) const;
  // Calls body(group, first element, first value, number of values) for the owned elements of [begin, begin +
  // count).
  template <typename Body>
  void for_each_owned(int64_t begin, int64_t count, const Body& body) const;
  bool is_feedback(StateKind kind) const;
  std::vector<Chunk> chunks() const;
  // Collective: fills every node's exchange_ with the masters of the chunk.
  void exchange(const Chunk& chunk);

  TrainableModel* model_;
  Communicator* comm_;
  ThreadPool* pool_;
  ZeroSettings settings_;
  ZeroLayout layout_;
  ShardPlan plan_;
  WeightStore weights_;
  GradientStore gradients_;
  std::optional<PackedWeights> packed_;
  std::vector<Piece> pieces_;         // ascending
  std::vector<int64_t> first_range_;  // of the optimizer, by group, plus the end
  std::optional<OptimizerState> state_;
  std::vector<StateTensor> state_tensors_;
  bool rehearses_ = false;  // the next pass

  // With optimizer_in_backward: the update that the next or current pass makes.
  std::optional<OptimizerStep> step_;
  ChangeHook before_change_;
  bool updates_ = false;  // this pass does
  bool has_begun_ = false;
  double seconds_ = 0;
  std::vector<double> range_squares_;  // of the gradients of this pass, by range of the optimizer
  std::string not_finite_;             // the first parameter of this pass whose gradient is not finite

  SharedSegment exchange_;              // kExchangeBytes, float32; allocated by export_masters()
  std::optional<DeviceWindow> window_;  // of a model on another device
};

}  // namespace tessera
