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
  AttentionOperands(const AttentionCase& c, int64_t scratch_bytes, ThreadPool& pool,
                    Device& device = host_device())
      : case_(c),
        shape_(c.shape()),
        qkv_(c.dtype, qkv_shape(c), 0, 1, pool, /*seed=*/1, device),
        o_(c.dtype, o_shape(c), 0, 1, pool, /*seed=*/2, device),
        lse_(DType::kF32, lse_shape(c), 0, 1, pool, /*seed=*/3, device),
        do_(c.dtype, o_shape(c), 0, 1, pool, /*seed=*/4, device),
        dqkv_(c.dtype, qkv_shape(c), 0, 1, pool, /*seed=*/5, device),
        scratch_(device.allocate(std::max<int64_t>(64, scratch_bytes))) {
    for (int64_t row = 0; row <= c.num_rows; ++row)
      cu_seqlens_.push_back(static_cast<int32_t>(row * c.length));
  }
  static int64_t size_bytes(const AttentionCase& c, int64_t scratch_bytes) {
    return 2 * (qkv_shape(c).num_elements() + o_shape(c).num_elements()) * dtype_bytes(c.dtype) +
           lse_shape(c).num_elements() * dtype_bytes(DType::kF32) + scratch_bytes;
  }

  std::span<std::byte> scratch() const { return scratch_.span(); }

  // `with`: the kernels and a pool, or a device's Ops.
  void run(auto&... with) { case_.backward ? backward(with...) : forward(with...); }

  // Backward uses o and lse from the same implementation's forward, which is verified as well.
  Verification verify(const std::string& what, auto&... with) {
    Verification result;
    Verifier verifier(what, result);
    poison(o_);
    poison(lse_);
    forward(with...);
    const HostTensor qkv(qkv_.copy(0)), o(o_.copy(0)), lse(lse_.copy(0));
    verify_attention(verifier, qkv.view(), shape_, cu_seqlens_, o.view(), lse.view());
    if (!case_.backward) return result;
    poison(dqkv_);
    backward(with...);
    const HostTensor d_o(do_.copy(0)), dqkv(dqkv_.copy(0));
    verify_attention_backward(verifier, d_o.view(), qkv.view(), o.view(), lse.view(), shape_, cu_seqlens_,
                              dqkv.view());
    return result;
  }

 private:
  static Shape qkv_shape(const AttentionCase& c) { return {c.num_tokens(), c.shape().qkv_width()}; }
  static Shape o_shape(const AttentionCase& c) { return {c.num_tokens(), c.num_heads * c.head_dim}; }
  static Shape lse_shape(const AttentionCase& c) { return {c.num_heads, c.num_tokens()}; }

  static void poison(const ColdCopies& tensor) {
    const HostTensor host(tensor.copy(0));
    std::memset(host.view().bytes(), 0xFF, static_cast<size_t>(host.view().size_bytes()));
    host.write_back();
  }

  void forward(const AttentionKernels& kernels, ThreadPool& pool) {
    kernels.forward(qkv_.copy(0), shape_, cu_seqlens_, o_.copy(0), lse_.copy(0), scratch(), pool);
  }
  void backward(const AttentionKernels& kernels, ThreadPool& pool) {
    kernels.backward(do_.copy(0), qkv_.copy(0), o_.copy(0), lse_.copy(0), shape_, cu_seqlens_, dqkv_.copy(0),
                     scratch(), pool);
  }
  void forward(Ops& ops) { ops.attention(qkv_.copy(0), shape_, cu_seqlens_, o_.copy(0), lse_.copy(0)); }
  void backward(Ops& ops) {
    ops.attention_backward(do_.copy(0), qkv_.copy(0), o_.copy(0), lse_.copy(0), shape_, cu_seqlens_,
                           dqkv_.copy(0));
  }

  AttentionCase case_;
  AttentionShape shape_;
  std::vector<int32_t> cu_seqlens_;
  ColdCopies qkv_, o_, lse_, do_, dqkv_;  // of each one, in the memory of a device
  DeviceBuffer scratch_;
};

std::string case_text(const AttentionCase& c) {
  return fmt::format("attention {} {} of {}, {} of {}, {}, {}", c.backward ? "backward" : "forward",
                     count_of(c.num_rows, "row"), c.length, count_of(c.num_heads, "head"), c.head_dim,
                     count_of(c.num_key_value_heads, "key-value head"), dtype_name(c.dtype));
}

BenchLine line_of(const AttentionCase& c) {
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

BenchLine run_attention_case(const AttentionCase& c, const AttentionImplementation& ours,
                             const std::vector<AttentionImplementation>& others,
                             const MeasureOptions& options, ThreadPool& pool) {
  const std::string what = case_text(c);
  const int64_t scratch = attention_scratch_bytes(c.shape(), c.num_tokens(), pool);
  check_bench_memory(what, AttentionOperands::size_bytes(c, scratch));
  AttentionOperands operands(c, scratch, pool);
  BenchLine line = line_of(c);
  measure_arithmetic(
      what, ours, others, options, c.dtype, [&](const auto& kernels) { operands.run(kernels, pool); },
      [&](const std::string& who, const auto& kernels) { return operands.verify(who, kernels, pool); }, pool,
      &line);
  return line;
}

BenchLine run_device_attention_case(const AttentionCase& c, const BenchDevice& device,
                                    const MeasureOptions& options) {
  const std::string what = case_text(c);
  OpsLimits limits = {};
  limits.max_tokens = c.num_tokens();
  limits.max_sequence_length = c.length;
  limits.hidden_size = c.num_heads * c.head_dim;
  limits.attention = c.shape();
  limits.dtype = c.dtype;
  limits.training = true;
  const int64_t scratch = device.ops.workspace_bytes(limits);
  check_device_memory(what, AttentionOperands::size_bytes(c, scratch), device.ops.device());
  AttentionOperands operands(c, scratch, device.pool, device.ops.device());
  BenchLine line = line_of(c);
  device.ops.bind_workspace(operands.scratch());
  line.verification = operands.verify(fmt::format("{}, {}", what, device.ops.description()), device.ops);
  measure_on_device([&] { operands.run(device.ops); }, operands.scratch(), c.dtype, device, options, &line);
  return line;
}

}  // namespace tessera
