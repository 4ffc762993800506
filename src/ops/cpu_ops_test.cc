#include "ops/cpu_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "base/rng.h"

namespace tessera {
namespace {

constexpr int64_t kTokens = 37, kWidth = 24, kFeedForward = 40, kVocabSize = 50;
constexpr AttentionShape kHeads = {
    .num_heads = 4, .num_key_value_heads = 2, .head_dim = 6, .sliding_window = 0, .scale = 0.4f};

OpsLimits limits(DType dtype) {
  return {.max_tokens = kTokens,
          .max_sequence_length = kTokens,
          .hidden_size = kWidth,
          .max_logits_rows = kTokens,
          .max_sum_elements = kVocabSize * kWidth,
          .attention = kHeads,
          .dtype = dtype,
          .training = true,
          .linears = {{kTokens, {kHeads.qkv_width(), kWidth}},
                      {kTokens, {2 * kFeedForward, kWidth}},
                      {kTokens, {kVocabSize, kWidth}}}};
}

class OwnedTensor {
 public:
  OwnedTensor(DType dtype, Shape shape, uint64_t seed = 1)
      : bytes_(static_cast<size_t>(shape.num_elements() * dtype_bytes(dtype))),
        view_(bytes_.data(), dtype, shape) {
    const CounterRng rng(seed, 0);
    for (int64_t i = 0; i < shape.num_elements(); ++i) {
      const float value = rng.normal(static_cast<uint64_t>(i));
      if (dtype == DType::kBF16) {
        view_.as<bf16>()[i] = to_bf16(value);
      } else {
        view_.as<float>()[i] = value;
      }
    }
  }
  TensorView view() const { return view_; }
  operator TensorView() const { return view_; }       // NOLINT: conversion wanted
  operator ConstTensorView() const { return view_; }  // NOLINT: conversion wanted
  bool is_finite() const {
    for (int64_t i = 0; i < view_.num_elements(); ++i) {
      const float value =
          view_.dtype() == DType::kBF16 ? to_float(view_.as<bf16>()[i]) : view_.as<float>()[i];
      if (!std::isfinite(value)) return false;
    }
    return true;
  }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
};

// Runs every operation once at the limits, in the order of a layer. Returns whether all results are finite.
bool run_every_operation(Ops& ops, DType A) {
  const int64_t T = kTokens, D = kWidth, F = kFeedForward, V = kVocabSize, Q = kHeads.qkv_width();
  const int64_t o_width = kHeads.num_heads * kHeads.head_dim,
                key_width = kHeads.num_key_value_heads * kHeads.head_dim;
  const DType F32 = DType::kF32;
  std::vector<int32_t> ids(static_cast<size_t>(T)), positions(static_cast<size_t>(T));
  std::iota(positions.begin(), positions.end(), 0);
  for (size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<int32_t>(t * 7 % kVocabSize);
  const std::vector<int32_t> cu_seqlens = {0, static_cast<int32_t>(T)};
  const std::vector<float> angles(static_cast<size_t>(T * kHeads.head_dim / 2), 0.7f);
  const ConstTensorView angles_PE2(angles.data(), DType::kF32, {T, kHeads.head_dim / 2});
  const RopeTable table = {angles_PE2, angles_PE2};

  OwnedTensor embedding(A, {V, D}), x(A, {T, D}), norm(A, {T, D}), w_norm(A, {D}), rstd(F32, {T});
  OwnedTensor w_qkv(A, {Q, D}), bias(A, {Q}), qkv(A, {T, Q}), w_head(A, {kHeads.head_dim});
  OwnedTensor head_rstd(F32, {T, kHeads.num_heads}), o(A, {T, o_width}), lse(F32, {kHeads.num_heads, T});
  OwnedTensor k_cache(A, {T, key_width}), v_cache(A, {T, key_width}), gate_up(A, {T, 2 * F}), h(A, {T, F});
  OwnedTensor w_gate_up(A, {2 * F, D}), logits(F32, {T, V}), dlogits(A, {T, V});
  ops.embedding(ids, embedding, x);
  ops.rmsnorm(x, w_norm.view(), 1e-5f, norm, rstd);
  ops.linear(norm, w_qkv, bias, qkv);
  ops.head_rmsnorm(qkv, kHeads, 0, kHeads.num_heads, w_head.view(), 1e-5f, qkv, head_rstd);
  ops.rope(qkv, kHeads, positions, table, false);
  ops.attention(qkv, kHeads, cu_seqlens, o, lse);
  ops.attention_cached(qkv, kHeads, k_cache, v_cache, 0, /*sinks_H=*/{}, o);
  ops.add_rmsnorm(x, norm, w_norm.view(), 1e-5f, norm, rstd);
  ops.linear(norm, w_gate_up, {}, gate_up);
  ops.swiglu(gate_up, h);
  ops.add(x, norm);
  ops.linear(norm, embedding, {}, logits);
  const LossSums sums = ops.cross_entropy(logits, ids, 0.1f, 1.0f, dlogits);

  OwnedTensor dembedding(F32, {V, D}), dnorm(A, {T, D}), dw_norm(F32, {D}), dgate_up(A, {T, 2 * F});
  OwnedTensor dqkv(A, {T, Q}), dw_qkv(F32, {Q, D}), dbias(F32, {Q}), dw_head(F32, {kHeads.head_dim});
  ops.linear_backward_input(dlogits, embedding, dnorm, Update::kOverwrite);
  ops.linear_backward_weight(dlogits, norm, dembedding, Update::kAdd);
  ops.swiglu_backward(h, gate_up, dgate_up, h);
  ops.linear_backward_input(dgate_up, w_gate_up, dnorm, Update::kAdd);
  ops.rmsnorm_backward(dnorm, x, w_norm.view(), rstd, dnorm, Update::kOverwrite, dw_norm, Update::kAdd);
  ops.attention_backward(o, qkv, o, lse, kHeads, cu_seqlens, dqkv);
  ops.rope(dqkv, kHeads, positions, table, true);
  ops.head_rmsnorm_backward(dqkv, qkv, kHeads, 0, kHeads.num_heads, w_head.view(), head_rstd, dw_head,
                            Update::kAdd);
  ops.linear_backward_weight(dqkv, norm, dw_qkv, Update::kOverwrite);
  ops.linear_backward_bias(dqkv, dbias, Update::kAdd);
  ops.zero(dgate_up);
  ops.embedding_backward(ids, dnorm, kNoPaddingId, dembedding);
  bool finite = std::isfinite(sums.loss_sum) && sums.num_targets == T;
  for (const OwnedTensor* result : {&x, &qkv, &o, &gate_up, &h, &logits, &dlogits, &dembedding, &dnorm,
                                    &dw_norm, &dgate_up, &dqkv, &dw_qkv, &dbias, &dw_head}) {
    finite = finite && result->is_finite();
  }
  return finite;
}

TEST(CpuOps, DescriptionNamesEveryKernel) {
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  EXPECT_THAT(ops->description(),
              testing::MatchesRegex("cpu: gemm [a-z_]+ \\([a-z0-9_]+\\),.*attention.*cross_entropy.*"));
}

TEST(CpuOps, EveryOperationStaysInsideTheWorkspaceOfItsLimits) {
  constexpr std::byte kCanary{0xA5};
  for (const int64_t num_threads : {1, 3}) {
    ThreadPool pool(num_threads);
    const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      const auto size = static_cast<size_t>(ops->workspace_bytes(limits(dtype)));
      std::vector<std::byte> memory(size + 192, kCanary);
      void* start = memory.data() + 64;
      size_t space = size + 64;
      ASSERT_NE(std::align(64, size, start, space), nullptr);
      const auto offset = static_cast<size_t>(static_cast<std::byte*>(start) - memory.data());
      ops->bind_workspace({memory.data() + offset, size});
      EXPECT_TRUE(run_every_operation(*ops, dtype)) << dtype_name(dtype) << " threads " << num_threads;
      const auto is_canary = [](std::byte value) { return value == kCanary; };
      EXPECT_TRUE(
          std::all_of(memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(offset), is_canary));
      EXPECT_TRUE(
          std::all_of(memory.begin() + static_cast<std::ptrdiff_t>(offset + size), memory.end(), is_canary));
    }
  }
}

TEST(CpuOps, LinearAndLossGiveKnownNumbers) {
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  std::vector<std::byte> workspace(static_cast<size_t>(ops->workspace_bytes(limits(DType::kF32))));
  ops->bind_workspace(workspace);
  const std::vector<float> x = {1, 2, 3, 4, 5, 6}, w = {1, 0, -1, 2, 1, 0}, bias = {10, 20};
  std::vector<float> y(4);
  ops->linear({x.data(), DType::kF32, {2, 3}}, ConstTensorView(w.data(), DType::kF32, {2, 3}),
              {bias.data(), DType::kF32, {2}}, {y.data(), DType::kF32, {2, 2}});
  EXPECT_EQ(y, (std::vector<float>{8, 24, 8, 33}));

  const std::vector<float> logits = {0, 0, 0, 0};
  const std::vector<int32_t> targets = {1, kIgnoredLabel};
  std::vector<float> dlogits(4);
  const LossSums sums = ops->cross_entropy({logits.data(), DType::kF32, {2, 2}}, targets, 0.0f, 1.0f,
                                           {dlogits.data(), DType::kF32, {2, 2}});
  EXPECT_EQ(sums.num_targets, 1);
  EXPECT_NEAR(sums.loss_sum, std::log(2.0), 1e-6);
  EXPECT_THAT(dlogits, testing::Pointwise(testing::FloatNear(1e-6f), {0.5f, -0.5f, 0.0f, 0.0f}));
}

TEST(CpuOps, CallsBeyondTheWorkspaceAreBugs) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  OwnedTensor logits(DType::kF32, {2, 3});
  EXPECT_THROW(ops->cross_entropy(logits, std::vector<int32_t>{0, 1}, 0, 1, {}), Error);
}

}  // namespace
}  // namespace tessera
