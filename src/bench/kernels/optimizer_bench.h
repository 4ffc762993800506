// Speed of the AdamW update against the measured memory bandwidth.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/bench_line.h"
#include "bench/measure.h"
#include "kernels/elementwise/elementwise_impl.h"
#include "kernels/optimizer/element_update_impl.h"

namespace tessera {

struct OptimizerCase {
  DType dtype = DType::kBF16;  // of the weights: BF16 with 16-bit remainders, or F32
  int64_t num_parameters = 0;
  bool has_coded_moments = false;  // in 8-bit codes, otherwise in F32
};

// Bytes that one update must read and write: of each parameter the weight (4 bytes with its remainder) and
// both moments are read and written, the gradient is read.
int64_t update_bytes(const OptimizerCase& c);

using AdamWKernels = UpdateKernels<AdamWRule>;
using AdamWImplementation = Implementation<AdamWKernels>;

// Verifies a sample of elements against float64, then measures; see run_gemm_case.
BenchLine run_optimizer_case(const OptimizerCase& c, const AdamWImplementation& ours,
                             const std::vector<AdamWImplementation>& others, const MeasureOptions& options,
                             BandwidthMeter& bandwidth, ThreadPool& pool);

// The sum of squares for the gradient norm, 4 bytes per parameter.
BenchLine run_gradient_norm_case(int64_t num_parameters, const Implementation<ElementwiseKernels>& ours,
                                 const MeasureOptions& options, BandwidthMeter& bandwidth, ThreadPool& pool);

}  // namespace tessera
