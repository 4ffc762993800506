// The parameters of a single rank that are updated in the backward pass: a group's float32 gradients exist
// from the moment the model opens them until the group is updated, so those of the whole model never do. The
// weights of decoder layers may be in a file (streamed_weights.h). Parameters are memory of the host, which a
// model on another device sees through a window.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/memory.h"
#include "shard/parameters/parameter_state.h"
#include "shard/weights/device_window.h"
#include "shard/weights/streamed_weights.h"

namespace tessera {

class StreamedParameters : public ParameterState, private ParameterAccess, private BackwardUpdate {
 public:
  StreamedParameters(TrainableModel& model, const ZeroSettings& settings,
                     std::unique_ptr<const Optimizer> optimizer, bool decay_all, ThreadPool& pool,
                     const std::optional<StateFileSettings>& state_file = {});

  void load(const SafetensorsModel& file, LoadOnce once,
            const std::function<void(const LoadProgress&)>& progress) override;
  // A step has a single pass; others, before it, leave everything as it is.
  WeightUpdate begin_pass(bool is_first, bool is_last) override;
  void end_pass() override;
  double gradient_squares() const override { return squares_; }
  std::string not_finite_gradient() const override { return not_finite_; }
  void update(const OptimizerStep& step, const ChangeHook& before_change) override;
  BackwardUpdate* backward_update() override { return this; }
  void discard_state_tensors() override { state_.discard_tensors(); }
  AsyncFileStatistics state_file_statistics() const override { return state_.file_statistics(); }
  AsyncFileStatistics weight_file_statistics() const override { return weights_.statistics(); }
  StateTensors state_tensors() const override { return state_.optimizer().state_tensors(); }
  void export_masters(const std::function<void(const WeightSource&)>& write) override;
  std::vector<ElementRange> owned() const override { return {{0, model_->layout().num_elements()}}; }
  void read_state(StateKind kind, int64_t begin, std::span<float> values) const override;
  StoredSource stored_source() const override;
  std::vector<ElementRange> kept() const override { return owned(); }
  void write_state(StateKind kind, int64_t begin, std::span<const float> values) override;
  void state_written() override;

 private:
  void begin(const OptimizerStep& step, double max_group_norm, ChangeHook before_change) override;
  void cancel() override { step_.reset(); }
  bool has_begun() const override { return has_begun_; }
  bool is_under_way() const override { return has_begun_ && step_.has_value(); }
  double seconds() const override { return seconds_; }

  std::byte* open_weights(int64_t group, WeightUse use) override;
  void close_weights(int64_t /*group*/) override {}
  void reserve_packed_forms(std::span<const int64_t> bytes_by_group) override;
  std::byte* packed_forms(int64_t group) override;
  std::byte* open_gradients(int64_t group) override;
  void close_gradients(int64_t group) override;

  void update_group(int64_t group, double group_squares);
  // The first parameter of the open group with a gradient that is not finite; there is one.
  std::string find_not_finite(int64_t group) const;
  TensorView gradients_of(int64_t group) const;
  // Calls body(group, first, count) for pieces of the elements [begin, begin + count): each of a single
  // group, and no larger than what is staged at a time.
  template <typename Body>
  void for_each_piece(int64_t begin, int64_t count, const Body& body) const;
  // Where an element that is in memory has its weight.
  int64_t weight_index(int64_t group, int64_t element) const;

  TrainableModel* model_;
  ThreadPool* pool_;
  StreamedWeights weights_;
  mutable std::mutex staging_;  // guards its staged elements
  GradientWindow window_;
  PageBuffer gradients_;              // float32, as window_ says
  std::vector<int64_t> first_range_;  // of the optimizer, by group, plus the end
  OptimizerState state_;

  PageBuffer packed_memory_;
  std::vector<std::byte*> packed_forms_;  // by group; empty: none are kept
  std::vector<bool> is_stale_;            // by group: its packed forms are of older weights

  // The update that the next or current pass makes.
  std::optional<OptimizerStep> step_;
  double max_group_norm_ = 0;
  ChangeHook before_change_;
  bool has_begun_ = false;
  double seconds_ = 0;

  bool updates_ = false;       // this pass does
  double squares_ = 0;         // of the gradients of this pass, as the model adds them up
  double closed_squares_ = 0;  // of them, of the groups closed before
  std::string not_finite_;     // the first parameter of this pass whose gradient is not finite

  std::optional<DeviceWindow> device_window_;  // of a model on another device
};

}  // namespace tessera
