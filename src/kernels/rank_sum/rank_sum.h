// Combines the contributions of several ranks, float32 or BF16, by summing element by element in rank order.
//
//   s_i = ((x_0i + x_1i) + x_2i) + ...   in float32        y_i = s_i  or  y_i = y_i + s_i
//
// Bit-identical for any number of threads. Subnormal values become zero (platform/subnormals.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/float_types.h"
#include "kernels/update.h"
#include "platform/thread_pool.h"

namespace tessera {

inline constexpr int64_t kMaxRankSumInputs = 256;

// The contribution of one rank; converts from a pointer.
class RankInput {
 public:
  RankInput(const float* values) : f32_(values) {}  // NOLINT: conversion wanted
  RankInput(const bf16* values) : bf16_(values) {}  // NOLINT: conversion wanted

  bool is_bf16() const { return bf16_ != nullptr; }
  const float* f32() const { return f32_; }
  const bf16* as_bf16() const { return bf16_; }

 private:
  const float* f32_ = nullptr;
  const bf16* bf16_ = nullptr;
};

// `count` elements of 1 to kMaxRankSumInputs inputs. y may be one of the inputs (kOverwrite); otherwise they
// do not overlap. With `pool` nullptr it runs on the calling thread alone, which need not belong to a pool.
void rank_sum(std::span<const RankInput> inputs, Update update, float* y, int64_t count, ThreadPool* pool);

// y = x rounded once to the nearest, ties to even; subnormal values may become zero. `pool` as above.
void round_to_bf16(const float* x, bf16* y, int64_t count, ThreadPool* pool);

}  // namespace tessera
