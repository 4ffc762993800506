// Speed of causal attention against the arithmetic peak.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench_line.h"
#include "bench/kernels/device_bench.h"
#include "bench/measure.h"
#include "kernels/attention/attention_impl.h"

namespace tessera {

struct AttentionCase {
  bool backward = false;
  DType dtype = DType::kBF16;
  int64_t num_rows = 1;  // sequences, packed back to back
  int64_t length = 0;    // S
  int64_t num_heads = 0, num_key_value_heads = 0, head_dim = 0;

  int64_t num_tokens() const { return num_rows * length; }
  AttentionShape shape() const;
  // Counts the causal half of the score matrix: 2 products forward and 5 backward, as FlashAttention's
  // benchmarks do (the fifth recomputes the scores, which memory linear in S requires; model/flops.h, which
  // counts only what the mathematics needs, has 4).
  double flop() const;
};

using AttentionImplementation = Implementation<AttentionKernels>;

// Verifies and measures; see run_gemm_case.
BenchLine run_attention_case(const AttentionCase& c, const AttentionImplementation& ours,
                             const std::vector<AttentionImplementation>& others,
                             const MeasureOptions& options, ThreadPool& pool);
// Measures the case on a device with memory of its own, in device time.
BenchLine run_device_attention_case(const AttentionCase& c, const BenchDevice& device,
                                    const MeasureOptions& options);

}  // namespace tessera
