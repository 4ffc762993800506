// Gradients of a single rank that are consumed in the backward pass: a group's gradients exist from the
// moment the model opens them until it has closed them; those of the whole model never exist at once.
#pragma once

#include <utility>

#include "base/memory.h"
#include "platform/prefault.h"
#include "shard/gradients/gradient_path.h"
#include "shard/layout/zero_memory.h"

namespace tessera {

class OpenGradients final : public GradientPath {
 public:
  OpenGradients(const ZeroLayout& layout, ThreadPool& pool, OnSum on_sum)
      : layout_(layout),
        window_(gradient_window(layout)),
        buffer_(window_.num_elements * dtype_bytes(DType::kF32)),
        on_sum_(std::move(on_sum)) {
    prefault(pool, opened_memory());
  }

  Update begin_pass(bool /*is_first*/, bool /*is_last*/, bool /*is_ignored*/) override {
    return Update::kOverwrite;
  }
  std::byte* open(int64_t group) override {
    return buffer_.data() + window_.begin[static_cast<size_t>(group)] * dtype_bytes(DType::kF32);
  }
  void close(int64_t group) override { on_sum_(group); }
  std::span<std::byte> opened_memory() const override { return buffer_.as<std::byte>(); }
  ConstTensorView gradients() const override { return {buffer_.data(), DType::kF32, {window_.num_elements}}; }
  int64_t index(int64_t group, int64_t element) const override {
    const auto at = static_cast<size_t>(group);
    return window_.begin[at] + element - layout_.groups[at].begin;
  }

 private:
  ZeroLayout layout_;
  GradientWindow window_;
  PageBuffer buffer_;  // float32
  OnSum on_sum_;
};

}  // namespace tessera
