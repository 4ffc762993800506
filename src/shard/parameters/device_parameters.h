// All parameters in the memory of the model's device, which updates them, too: the run of a single rank on a
// card.
#pragma once

#include <memory>
#include <vector>

#include "optim/adamw.h"
#include "shard/parameters/parameter_state.h"
#include "tensor/device.h"
#include "weights/weight_reader.h"

namespace tessera {

class DeviceParameters : public ParameterState {
 public:
  DeviceParameters(TrainableModel& model, std::unique_ptr<const Optimizer> optimizer, bool decay_all,
                   ThreadPool& pool);

  void load(const SafetensorsModel& file, LoadOnce once,
            const std::function<void(const LoadProgress&)>& progress) override;
  WeightUpdate begin_pass(bool is_first, bool is_last) override;
  void end_pass() override {}
  double gradient_squares() const override { return squares_; }
  std::string not_finite_gradient() const override;
  void update(const OptimizerStep& step, const ChangeHook& before_change) override;
  StateTensors state_tensors() const override { return optimizer_->state_tensors(); }
  void export_masters(const std::function<void(const WeightSource&)>& write) override;
  std::vector<ElementRange> owned() const override { return {{0, model_->layout().num_elements()}}; }
  void read_state(StateKind kind, int64_t begin, std::span<float> values) const override;
  std::vector<ElementRange> kept() const override { return owned(); }
  void write_state(StateKind kind, int64_t begin, std::span<const float> values) override;
  void state_written() override { model_->weights_changed(); }

 private:
  struct FlatArray {
    FlatArray(Device& device, DType dtype, int64_t num_elements)
        : memory(device.allocate(num_elements * dtype_bytes(dtype))),
          view(memory.view(dtype, {num_elements})) {}

    TensorView bytes() const { return memory.view(DType::kU8, {view.size_bytes()}); }

    DeviceBuffer memory;
    TensorView view;
  };

  bool has_remainders() const { return weights_.view.dtype() == DType::kBF16; }
  void load_split(WeightReader& reader);
  static void read_moment(TensorView moment, int64_t begin, std::span<float> values);
  static void write_moment(TensorView moment, int64_t begin, std::span<const float> values);
  // The masters of consecutive elements, split as they are kept.
  void write_masters(int64_t begin, std::span<const bf16> weights, std::span<const int16_t> remainders);

  TrainableModel* model_;
  ThreadPool* pool_;
  std::unique_ptr<const AdamW> optimizer_;
  std::vector<ParameterRange> ranges_;
  std::vector<int64_t> first_range_;  // by group, plus the end
  FlatArray weights_;                 // in the training dtype
  FlatArray gradients_;               // in float32
  FlatArray remainders_;              // of the masters of BF16 weights
  std::vector<FlatArray> moments_;    // in the order of state_tensors()
  double squares_ = 0;                // of the current step's gradients
  bool has_updates_ = false;          // since the remainders were zeros
};

}  // namespace tessera
