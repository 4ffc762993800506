#include "optim/adamw.h"

#include <algorithm>
#include <cmath>

#include "kernels/adamw/adamw.h"
#include "kernels/elementwise/elementwise.h"

namespace tessera {
namespace {

// BF16 gradients widened at a time: 4 MiB of float32, still in cache when read again.
constexpr int64_t kWidenedBlock = 1 << 20;

// Elements a thread takes at a time when masters are read or written: 256 KiB of float32.
constexpr int64_t kCopyBlock = 64 * 1024;

int64_t moment_bytes(int64_t num_elements) { return 2 * num_elements * dtype_bytes(DType::kF32); }

int64_t remainder_bytes(int64_t num_elements, DType dtype) {
  return dtype == DType::kBF16 ? num_elements * dtype_bytes(DType::kU16) : 0;
}

}  // namespace

int64_t AdamW::state_bytes(int64_t num_elements, DType dtype) {
  return moment_bytes(num_elements) + remainder_bytes(num_elements, dtype) +
         sum_of_squares_scratch_bytes(num_elements);
}

AdamW::AdamW(std::vector<ParameterRange> ranges, TensorView weights, ConstTensorView gradients,
             const AdamWOptions& options, ThreadPool& pool, std::optional<int64_t> num_state_elements)
    : ranges_(std::move(ranges)),
      weights_(weights),
      gradients_(gradients),
      options_(options),
      pool_(&pool),
      moments_(moment_bytes(num_state_elements.value_or(weights.num_elements()))),
      remainders_(remainder_bytes(num_state_elements.value_or(weights.num_elements()), weights.dtype())),
      norm_scratch_(sum_of_squares_scratch_bytes(num_state_elements.value_or(weights.num_elements()))) {
  TESSERA_CHECK(weights.dtype() == DType::kBF16 || weights.dtype() == DType::kF32, "weights are {}",
                dtype_name(weights.dtype()));
  TESSERA_CHECK(gradients.dtype() == DType::kF32 || gradients.dtype() == DType::kBF16, "gradients are {}",
                dtype_name(gradients.dtype()));
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
    end_of_last = range.begin + range.count;
  }
}

template <typename Body>
void AdamW::for_each_block(const ParameterRange& range, const Body& body) const {
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

double AdamW::gradient_norm() const {
  // Range by range, because alignment gaps may hold anything.
  double sum = 0;
  for (const ParameterRange& range : ranges_) {
    for_each_block(range, [&](int64_t /*begin*/, std::span<const float> gradient) {
      sum += sum_of_squares(gradient, norm_scratch_.as<std::byte>(), *pool_);
    });
  }
  return std::sqrt(sum);
}

void AdamW::set_betas(double beta1, double beta2) {
  TESSERA_CHECK(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "betas {} and {}", beta1, beta2);
  options_.beta1 = beta1;
  options_.beta2 = beta2;
}

void AdamW::step(int64_t step, double learning_rate, double gradient_scale) {
  step_ranges(0, num_ranges(), step, learning_rate, gradient_scale);
}

void AdamW::step_ranges(int64_t first, int64_t last, int64_t step, double learning_rate,
                        double gradient_scale) {
  const auto scalars = [&](double weight_decay) {
    return adamw_scalars(learning_rate, options_.beta1, options_.beta2, options_.epsilon, weight_decay, step,
                         gradient_scale);
  };
  const AdamWScalars decaying = scalars(options_.weight_decay);
  const AdamWScalars plain = scalars(0);
  float* m = moments_.as<float>().data();
  float* v = m + num_state_elements();
  for (int64_t i = first; i < last; ++i) {
    const ParameterRange& range = ranges_[static_cast<size_t>(i)];
    const AdamWScalars& chosen = range.weight_decay ? decaying : plain;
    for_each_block(range, [&](int64_t begin, std::span<const float> gradient) {
      const int64_t at = range.begin + begin, state = range.state_begin + begin;
      if (weights_.dtype() == DType::kBF16) {
        adamw_bf16(weights_.as<bf16>() + at, remainders_.as<int16_t>().data() + state, gradient.data(),
                   m + state, v + state, std::ssize(gradient), chosen, *pool_);
      } else {
        adamw_f32(weights_.as<float>() + at, gradient.data(), m + state, v + state, std::ssize(gradient),
                  chosen, *pool_);
      }
    });
  }
}

void AdamW::read_master(int64_t begin, int64_t state_begin, std::span<float> destination) const {
  pool_->parallel_blocks(std::ssize(destination), kCopyBlock, [&](int64_t first, int64_t last) {
    read_master_alone(begin + first, state_begin + first,
                      destination.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first)));
  });
}

void AdamW::read_master_alone(int64_t begin, int64_t state_begin, std::span<float> destination) const {
  check_elements(begin, state_begin, std::ssize(destination));
  if (weights_.dtype() == DType::kF32) {
    std::copy_n(weights_.as<float>() + begin, destination.size(), destination.begin());
    return;
  }
  const bf16* weight = weights_.as<bf16>() + begin;
  const int16_t* remainder = remainders_.as<int16_t>().data() + state_begin;
  for (size_t i = 0; i < destination.size(); ++i) destination[i] = join_master(weight[i], remainder[i]);
}

void AdamW::write_master(int64_t begin, int64_t state_begin, std::span<const float> source) {
  check_elements(begin, state_begin, std::ssize(source));
  pool_->parallel_blocks(std::ssize(source), kCopyBlock, [&](int64_t first, int64_t last) {
    if (weights_.dtype() == DType::kF32) {
      std::copy(source.data() + first, source.data() + last, weights_.as<float>() + begin + first);
      return;
    }
    bf16* weight = weights_.as<bf16>() + begin;
    int16_t* remainder = remainders_.as<int16_t>().data() + state_begin;
    for (int64_t i = first; i < last; ++i) {
      const float master = source[static_cast<size_t>(i)];
      weight[i] = master_weight(master);
      remainder[i] = master_remainder(master);
    }
  });
}

void AdamW::check_elements(int64_t begin, int64_t state_begin, int64_t count) const {
  TESSERA_CHECK(begin >= 0 && count >= 0 && begin + count <= weights_.num_elements(),
                "{} elements at {} of {}", count, begin, weights_.num_elements());
  TESSERA_CHECK(state_begin >= 0 && state_begin + count <= num_state_elements(),
                "state of {} elements at {} of {}", count, state_begin, num_state_elements());
}

}  // namespace tessera
