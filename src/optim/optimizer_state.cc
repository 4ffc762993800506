#include "optim/optimizer_state.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/elementwise/elementwise.h"

namespace tessera {
namespace {

// BF16 gradients widened at a time: 4 MiB of float32, still in cache when read again.
constexpr int64_t kWidenedBlock = 1 << 20;

// Elements a thread takes at a time when masters are read or written: 256 KiB of float32.
constexpr int64_t kCopyBlock = 64 * 1024;

}  // namespace

int64_t remainder_bytes(int64_t num_elements, DType weight_dtype) {
  return weight_dtype == DType::kBF16 ? num_elements * dtype_bytes(DType::kI16) : 0;
}

int64_t optimizer_state_bytes(StateTensors tensors, int64_t num_elements, DType weight_dtype) {
  return state_bytes(tensors, num_elements) + remainder_bytes(num_elements, weight_dtype) +
         sum_of_squares_scratch_bytes(num_elements);
}

OptimizerState::OptimizerState(std::unique_ptr<const Optimizer> optimizer, std::vector<ParameterRange> ranges,
                               TensorView weights, ConstTensorView gradients, ThreadPool& pool,
                               std::optional<int64_t> num_state_elements)
    : optimizer_(std::move(optimizer)),
      ranges_(std::move(ranges)),
      weights_(weights),
      gradients_(gradients),
      pool_(&pool),
      num_state_elements_(num_state_elements.value_or(weights.num_elements())),
      remainders_(remainder_bytes(num_state_elements_, weights.dtype())),
      norm_scratch_(sum_of_squares_scratch_bytes(num_state_elements_)) {
  TESSERA_CHECK(weights.dtype() == DType::kBF16 || weights.dtype() == DType::kF32, "weights are {}",
                dtype_name(weights.dtype()));
  TESSERA_CHECK(gradients.dtype() == DType::kF32 || gradients.dtype() == DType::kBF16, "gradients are {}",
                dtype_name(gradients.dtype()));
  TESSERA_CHECK(optimizer_->state_tensors().size() <= kMaxStateTensors);
  for (const StateTensor& tensor : optimizer_->state_tensors()) {
    state_.emplace_back(state_bytes(tensor.dtype, num_state_elements_));
  }
  if (gradients.dtype() == DType::kBF16) widened_ = PageBuffer(kWidenedBlock * dtype_bytes(DType::kF32));
  int64_t end_of_last = 0;
  for (const ParameterRange& range : ranges_) {
    TESSERA_CHECK(
        range.begin >= end_of_last && range.count >= 0 && range.begin + range.count <= weights.num_elements(),
        "range of {} elements at {} after {} of {}", range.count, range.begin, end_of_last,
        weights.num_elements());
    TESSERA_CHECK(0 <= range.gradient_begin && range.gradient_begin + range.count <= gradients.num_elements(),
                  "gradient of {} elements at {} of {}", range.count, range.gradient_begin,
                  gradients.num_elements());
    check_elements(range.begin, range.state_begin, range.count);
    for (const StateTensor& tensor : optimizer_->state_tensors()) {
      const int64_t block = state_block(tensor.dtype);
      TESSERA_CHECK(range.state_begin % block == 0 && range.first_element % block == 0,
                    "{} of elements from {} on at {}", tensor.name, range.first_element, range.state_begin);
    }
    end_of_last = range.begin + range.count;
  }
}

template <typename Body>
void OptimizerState::for_each_block(const ParameterRange& range, const Body& body) const {
  if (gradients_.dtype() == DType::kF32) {
    body(int64_t{0},
         std::span(gradients_.as<float>() + range.gradient_begin, static_cast<size_t>(range.count)));
    return;
  }
  for (int64_t begin = 0; begin < range.count; begin += kWidenedBlock) {
    const int64_t count = std::min(kWidenedBlock, range.count - begin);
    const bf16* from = gradients_.as<bf16>() + range.gradient_begin + begin;
    float* to = widened_.as<float>().data();
    pool_->parallel_blocks(count, kCopyBlock, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) to[i] = to_float(from[i]);
    });
    body(begin, std::span<const float>(to, static_cast<size_t>(count)));
  }
}

double OptimizerState::gradient_norm() const {
  // Range by range, because alignment gaps may hold anything.
  double sum = 0;
  for (const ParameterRange& range : ranges_) {
    for_each_block(range, [&](int64_t /*begin*/, std::span<const float> gradient) {
      sum += sum_of_squares(gradient, norm_scratch_.as<std::byte>(), *pool_);
    });
  }
  return std::sqrt(sum);
}

void OptimizerState::update(int64_t first, int64_t last, const OptimizerStep& step) {
  std::array<std::byte*, kMaxStateTensors> state = {};
  for (int64_t i = first; i < last; ++i) {
    const ParameterRange& range = ranges_[static_cast<size_t>(i)];
    for_each_block(range, [&](int64_t begin, std::span<const float> gradient) {
      const int64_t at = range.begin + begin, state_begin = range.state_begin + begin;
      for (size_t tensor = 0; tensor < state_.size(); ++tensor) state[tensor] = state_at(tensor, state_begin);
      optimizer_->update({.weights = weights_.rows(at, at + std::ssize(gradient)),
                          .remainders = remainders_at(state_begin),
                          .gradient = gradient,
                          .state = std::span(state).first(state_.size()),
                          .first_element = range.first_element + begin,
                          .weight_decay = range.weight_decay},
                         step, *pool_);
    });
  }
}

void OptimizerState::read_master(int64_t begin, int64_t state_begin, std::span<float> destination) const {
  pool_->parallel_blocks(std::ssize(destination), kCopyBlock, [&](int64_t first, int64_t last) {
    read_master_alone(begin + first, state_begin + first,
                      destination.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first)));
  });
}

void OptimizerState::read_master_alone(int64_t begin, int64_t state_begin,
                                       std::span<float> destination) const {
  check_elements(begin, state_begin, std::ssize(destination));
  if (weights_.dtype() == DType::kF32) {
    std::copy_n(weights_.as<float>() + begin, destination.size(), destination.begin());
    return;
  }
  const bf16* weight = weights_.as<bf16>() + begin;
  const int16_t* remainder = remainders_at(state_begin);
  for (size_t i = 0; i < destination.size(); ++i) destination[i] = join_master(weight[i], remainder[i]);
}

void OptimizerState::write_master(int64_t begin, int64_t state_begin, std::span<const float> source) {
  check_elements(begin, state_begin, std::ssize(source));
  pool_->parallel_blocks(std::ssize(source), kCopyBlock, [&](int64_t first, int64_t last) {
    if (weights_.dtype() == DType::kF32) {
      std::copy(source.data() + first, source.data() + last, weights_.as<float>() + begin + first);
      return;
    }
    bf16* weight = weights_.as<bf16>() + begin;
    int16_t* remainder = remainders_at(state_begin);
    for (int64_t i = first; i < last; ++i) {
      const float master = source[static_cast<size_t>(i)];
      weight[i] = master_weight(master);
      remainder[i] = master_remainder(master);
    }
  });
}

void OptimizerState::read(StateKind kind, int64_t begin, int64_t state_begin, std::span<float> values) const {
  if (kind == StateKind::kMaster) {
    read_master_alone(begin, state_begin, values);
    return;
  }
  check_elements(begin, state_begin, std::ssize(values));
  const size_t tensor = tensor_index(kind);
  const DType dtype = optimizer_->state_tensors()[tensor].dtype;
  if (is_block_code(dtype)) {
    read_codes(dtype, state_[tensor].data(), state_begin, values);
    return;
  }
  const std::byte* from = state_at(tensor, state_begin);
  if (dtype == DType::kF32) {
    std::copy_n(reinterpret_cast<const float*>(from), values.size(), values.begin());
  } else {
    std::transform(reinterpret_cast<const bf16*>(from), reinterpret_cast<const bf16*>(from) + values.size(),
                   values.begin(), [](bf16 value) { return to_float(value); });
  }
}

void OptimizerState::write(StateKind kind, int64_t begin, int64_t state_begin,
                           std::span<const float> values) {
  if (kind == StateKind::kMaster) {
    write_master(begin, state_begin, values);
    return;
  }
  check_elements(begin, state_begin, std::ssize(values));
  const size_t tensor = tensor_index(kind);
  const DType dtype = optimizer_->state_tensors()[tensor].dtype;
  if (is_block_code(dtype)) {
    write_codes(dtype, state_[tensor].data(), state_begin, values);
    return;
  }
  std::byte* to = state_at(tensor, state_begin);
  if (dtype == DType::kF32) {
    std::ranges::copy(values, reinterpret_cast<float*>(to));
  } else {
    std::ranges::transform(values, reinterpret_cast<bf16*>(to), [](float value) { return to_bf16(value); });
  }
}

std::byte* OptimizerState::state_at(size_t tensor, int64_t state_begin) const {
  return state_[tensor].data() + state_bytes(optimizer_->state_tensors()[tensor].dtype, state_begin);
}

void OptimizerState::check_elements(int64_t begin, int64_t state_begin, int64_t count) const {
  TESSERA_CHECK(begin >= 0 && count >= 0 && begin + count <= weights_.num_elements(),
                "{} elements at {} of {}", count, begin, weights_.num_elements());
  TESSERA_CHECK(state_begin >= 0 && state_begin + count <= num_state_elements_,
                "state of {} elements at {} of {}", count, state_begin, num_state_elements_);
}

}  // namespace tessera
