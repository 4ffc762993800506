// Speed of the products with quantised weights against those with weights in the dtype of the activations.
#pragma once

#include "bench/kernels/gemm_bench.h"
#include "tensor/quantization.h"

namespace tessera {

// Compares with `other` in the same rounds. First checks that the result is that of `other` but for
// quantisation: Error(kInternal) if it is not. The product is kForward or kBackwardInput, Error(kUsage) for
// another; kBadConfig if the operands do not fit in memory.
BenchLine run_quantized_case(const GemmCase& c, Quantization form, const GemmImplementation& other,
                             const MeasureOptions& options, ThreadPool& pool);

}  // namespace tessera
