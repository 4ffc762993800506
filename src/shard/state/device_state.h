// Masters and AdamW's state in the memory of a device, which updates them, too.
#pragma once

#include <memory>
#include <vector>

#include "model/trainable_model.h"
#include "optim/elementwise.h"
#include "optim/state_parts.h"
#include "optim/state_place.h"
#include "weights/weight_reader.h"

namespace tessera {

class DeviceState final : public StatePlace {
 public:
  // `weights` and `gradients` are flat arrays of the model's device.
  DeviceState(TrainableModel& model, std::unique_ptr<const Optimizer> optimizer,
              std::vector<ParameterRange> ranges, TensorView weights, ConstTensorView gradients);

  // Loads all weights of the reader's files.
  void load(WeightReader& reader);

  const Optimizer& optimizer() const override { return *optimizer_; }
  void update(int64_t first, int64_t last, const OptimizerStep& step) override;
  void read(StateKind kind, int64_t begin, int64_t state_begin, std::span<float> values) const override;
  void write(StateKind kind, int64_t begin, int64_t state_begin, std::span<const float> values) override;

 private:
  struct FlatArray {
    FlatArray(Device& device, DType dtype, int64_t num_elements)
        : memory(device.allocate(num_elements * dtype_bytes(dtype))),
          view(memory.view(dtype, {num_elements})) {}

    DeviceBuffer memory;
    TensorView view;
  };

  bool has_remainders() const { return weights_.dtype() == DType::kBF16; }
  void load_split(WeightReader& reader);
  static void read_moment(TensorView moment, int64_t begin, std::span<float> values);
  static void write_moment(TensorView moment, int64_t begin, std::span<const float> values);
  // The masters of consecutive elements, split as they are kept.
  void write_masters(int64_t begin, std::span<const bf16> weights, std::span<const int16_t> remainders);

  TrainableModel* model_;
  std::unique_ptr<const RuleOptimizer<AdamWRule>> optimizer_;
  std::vector<ParameterRange> ranges_;
  TensorView weights_;
  ConstTensorView gradients_;
  FlatArray remainders_;            // of the masters of BF16 weights
  std::vector<FlatArray> moments_;  // in the order of state_tensors()
  bool has_updates_ = false;        // since the remainders were zeros
};

}  // namespace tessera
