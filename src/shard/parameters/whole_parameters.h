// All parameters in this process, in memory of the host: the run of a single rank.
#pragma once

#include "base/memory.h"
#include "shard/parameters/parameter_state.h"

namespace tessera {

class WholeParameters : public ParameterState {
 public:
  WholeParameters(TrainableModel& model, std::unique_ptr<const Optimizer> optimizer, bool decay_all,
                  ThreadPool& pool, const std::optional<StateFileSettings>& state_file = {});

  void load(const SafetensorsModel& file, LoadOnce once,
            const std::function<void(const LoadProgress&)>& progress) override;
  WeightUpdate begin_pass(bool is_first, bool is_last) override;
  void end_pass() override {}
  double gradient_squares() const override { return squares_; }
  std::string not_finite_gradient() const override;
  void update(const OptimizerStep& step, const ChangeHook& before_change) override;
  void discard_state_tensors() override { state_.discard_tensors(); }
  AsyncFileStatistics state_file_statistics() const override { return state_.file_statistics(); }
  StateTensors state_tensors() const override { return state_.optimizer().state_tensors(); }
  void export_masters(const std::function<void(const WeightSource&)>& write) override;
  std::vector<ElementRange> owned() const override { return {{0, model_->layout().num_elements()}}; }
  void read_state(StateKind kind, int64_t begin, std::span<float> values) const override;
  StoredSource stored_source() const override;
  std::vector<ElementRange> kept() const override { return owned(); }
  void write_state(StateKind kind, int64_t begin, std::span<const float> values) override;
  void state_written() override;

 private:
  TensorView weights() const { return {weights_.data(), model_->dtype(), {model_->layout().num_elements()}}; }
  TensorView gradients() const { return {gradients_.data(), DType::kF32, {model_->layout().num_elements()}}; }

  TrainableModel* model_;
  ThreadPool* pool_;
  PageBuffer weights_;                // in the training dtype
  PageBuffer gradients_;              // in float32
  std::vector<int64_t> first_range_;  // of the optimizer, by group, plus the end
  OptimizerState state_;
  double squares_ = 0;  // of the current step's gradients
};

}  // namespace tessera
