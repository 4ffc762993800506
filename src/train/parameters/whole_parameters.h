// All parameters in this process: the run of a single rank. Weights and gradients are on the model's device.
// The optimizer works on the host: for another device it has copies there, and what it reads and writes is
// copied group by group.
#pragma once

#include "tensor/device.h"
#include "train/parameters/parameter_state.h"

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
  std::vector<ElementRange> kept() const override { return owned(); }
  void write_state(StateKind kind, int64_t begin, std::span<const float> values) override;
  void state_written() override;

 private:
  // A flat array on the model's device, and where the host has its elements: there or in a copy.
  struct FlatArray {
    FlatArray(Device& device, DType dtype, int64_t num_elements, ThreadPool& pool);
    // Copies elements [begin, end) if they are in two places.
    void to_host(int64_t begin, int64_t end) const;
    void to_device(int64_t begin, int64_t end) const;

    DeviceBuffer memory;
    DeviceBuffer host_copy;  // empty: the device is the host
    TensorView view;
    TensorView host_view;
  };

  TrainableModel* model_;
  ThreadPool* pool_;
  FlatArray weights_;                 // in the training dtype
  FlatArray gradients_;               // in float32
  std::vector<int64_t> first_range_;  // of the optimizer, by group, plus the end
  OptimizerState state_;
  double squares_ = 0;  // of the current step's gradients
};

}  // namespace tessera
