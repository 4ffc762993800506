// The gradients of a single rank in the memory of the model's device, until its update.
#pragma once

#include "model/trainable_model.h"
#include "shard/gradients/gradient_path.h"

namespace tessera {

class DeviceGradients final : public GradientPath {
 public:
  explicit DeviceGradients(const TrainableModel& model)
      : layout_(&model.layout()),
        buffer_(model.device().allocate(layout_->num_elements() * dtype_bytes(DType::kF32))),
        view_(buffer_.view(DType::kF32, {layout_->num_elements()})) {}

  Update begin_pass(bool is_first, bool /*is_last*/, bool /*is_ignored*/) override {
    return is_first ? Update::kOverwrite : Update::kAdd;
  }
  std::byte* open(int64_t group) override {
    return view_.address() + layout_->groups()[static_cast<size_t>(group)].begin * dtype_bytes(DType::kF32);
  }
  TensorView memory() const { return view_; }
  ConstTensorView gradients() const override { return view_; }
  int64_t index(int64_t /*group*/, int64_t element) const override { return element; }

 private:
  const ParameterLayout* layout_;
  DeviceBuffer buffer_;
  TensorView view_;
};

}  // namespace tessera
