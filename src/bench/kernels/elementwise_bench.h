// Speed of the operations between the matrix products against the measured memory bandwidth.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench_line.h"
#include "bench/measure.h"
#include "formats/huggingface/model_config.h"
#include "ops/ops.h"

namespace tessera {

// In the order of a step: "rmsnorm", "add_rmsnorm", "rope", "swiglu", "cross_entropy", ...
std::vector<std::string> elementwise_operations();

struct ElementwiseCase {
  std::string operation;
  DType dtype = DType::kBF16;
  int64_t num_tokens = 0;  // rows
  ModelConfig config;      // widths; cross_entropy and embedding need a vocab_size
};

// Verifies one call of `ops` and measures. Arrays rotate through copies beyond the caches; counts the bytes
// that the operation must read and write once. Errors as run_gemm_case; kUsage for an unknown operation.
BenchLine run_elementwise_case(const ElementwiseCase& c, Ops& ops, const MeasureOptions& options,
                               BandwidthMeter& bandwidth, ThreadPool& pool);

}  // namespace tessera
