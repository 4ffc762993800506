#include "bench/kernels/attention_bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/text.h"
#include "bench/kernels/verify.h"
#include "bench/surroundings.h"
#include "devices/measure/random_tensor.h"
#include "model/flops.h"

namespace tessera {
namespace {

class AttentionOperands {
 public:
  AttentionOperands(const AttentionCase& c, ThreadPool& pool)
      : case_(c),
        pool_(pool),
        shape_(c.shape()),
        qkv_(c.dtype, {c.num_tokens(), shape_.qkv_width()}, 1, 1, pool),
        o_(c.dtype, {c.num_tokens(), c.num_heads * c.head_dim}, 2, 1, pool),
        lse_(DType::kF32, {c.num_heads, c.num_tokens()}, 3, 1, pool),
        do_(c.dtype, {c.num_tokens(), c.num_heads * c.head_dim}, 4, 1, pool),
        dqkv_(c.dtype, {c.num_tokens(), shape_.qkv_width()}, 5, 1, pool),
        scratch_(std::max<int64_t>(64, attention_scratch_bytes(shape_, c.num_tokens(), pool))) {
    for (int64_t row = 0; row <= c.num_rows; ++row) {
      cu_seqlens_.push_back(static_cast<int32_t>(row * c.length));
    }
  }

  static int64_t size_bytes(const AttentionCase& c, const ThreadPool& pool) {
    const AttentionShape shape = c.shape();
    const int64_t activations = 2 * (shape.qkv_width() + c.num_heads * c.head_dim) * dtype_bytes(c.dtype);
    return c.num_tokens() * (activations + c.num_heads * dtype_bytes(DType::kF32)) +
           attention_scratch_bytes(shape, c.num_tokens(), pool);
  }

  void run(const AttentionKernels& kernels) { case_.backward ? run_backward(kernels) : run_forward(kernels); }

  // Backward uses o and lse from the same implementation's forward, which is verified as well.
  Verification verify(const std::string& what, const AttentionKernels& kernels) {
    Verification result;
    Verifier verifier(what, result);
    poison(o_.view());
    poison(lse_.view());
    run_forward(kernels);
    verify_attention(verifier, qkv_.view(), shape_, cu_seqlens_, o_.view(), lse_.view());
    if (case_.backward) {
      poison(dqkv_.view());
      run_backward(kernels);
      verify_attention_backward(verifier, do_.view(), qkv_.view(), o_.view(), lse_.view(), shape_,
                                cu_seqlens_, dqkv_.view());
    }
    return result;
  }

 private:
  static void poison(TensorView tensor) {
    std::memset(tensor.bytes(), 0xFF, static_cast<size_t>(tensor.size_bytes()));
  }
  void run_forward(const AttentionKernels& kernels) {
    kernels.forward(qkv_.view(), shape_, cu_seqlens_, o_.view(), lse_.view(), scratch_.as<std::byte>(),
                    pool_);
  }
  void run_backward(const AttentionKernels& kernels) {
    kernels.backward(do_.view(), qkv_.view(), o_.view(), lse_.view(), shape_, cu_seqlens_, dqkv_.view(),
                     scratch_.as<std::byte>(), pool_);
  }

  AttentionCase case_;
  ThreadPool& pool_;
  AttentionShape shape_;
  std::vector<int32_t> cu_seqlens_;
  RandomTensor qkv_, o_, lse_, do_, dqkv_;
  PageBuffer scratch_;
};

}  // namespace

AttentionShape AttentionCase::shape() const {
  return {num_heads, num_key_value_heads, head_dim, /*sliding_window=*/0,
          static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)))};
}

double AttentionCase::flop() const {
  const double pairs = causal_pairs(length, /*sliding_window=*/0) * static_cast<double>(num_rows);
  const double num_products = backward ? 5 : 2;
  return num_products * 2 * static_cast<double>(num_heads * head_dim) * pairs;
}

std::string attention_case_text(const AttentionCase& c) {
  return fmt::format("attention {} {} of {}, {} of {}, {}, {}", c.backward ? "backward" : "forward",
                     count_of(c.num_rows, "row"), c.length, count_of(c.num_heads, "head"), c.head_dim,
                     count_of(c.num_key_value_heads, "key-value head"), dtype_name(c.dtype));
}

BenchLine attention_line(const AttentionCase& c) {
  BenchLine line;
  line.benchmark = "attention";
  line.operation = c.backward ? "backward" : "forward";
  line.shape = {{"rows", c.num_rows},
                {"S", c.length},
                {"H", c.num_heads},
                {"G", c.num_key_value_heads},
                {"E", c.head_dim}};
  line.amount = c.flop() * 1e-12;
  return line;
}

BenchLine run_attention_case(const AttentionCase& c, const AttentionImplementation& ours,
                             const std::vector<AttentionImplementation>& others,
                             const MeasureOptions& options, ThreadPool& pool) {
  const std::string what = attention_case_text(c);
  check_bench_memory(what, AttentionOperands::size_bytes(c, pool));
  AttentionOperands operands(c, pool);
  BenchLine line = attention_line(c);
  measure_arithmetic(what, ours, others, options, c.dtype, operands, pool, &line);
  return line;
}

}  // namespace tessera
