// Speed of the matrix products of linear layers against the arithmetic peak and other implementations.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/bench_line.h"
#include "bench/kernels/device_bench.h"
#include "bench/measure.h"
#include "formats/huggingface/model_config.h"
#include "kernels/gemm/gemm_impl.h"
#include "tensor/quantization.h"

namespace tessera {

enum class Product { kForward, kBackwardInput, kBackwardWeight, kBackwardWeightAdd };
inline constexpr Product kProducts[] = {Product::kForward, Product::kBackwardInput, Product::kBackwardWeight,
                                        Product::kBackwardWeightAdd};
std::string_view product_name(Product product);  // "backward_weight", "backward_weight_add"

Product parse_product(const std::string& name);  // Error(kUsage) with the known names

struct GemmCase {
  Product product = Product::kForward;
  DType dtype = DType::kBF16;
  int64_t T = 0, N = 0, K = 0;
  bool pack_weights = true;  // weights are packed before the measurement if the implementation can

  double flop() const {
    return 2.0 * static_cast<double>(T) * static_cast<double>(N) * static_cast<double>(K);
  }
};

// A linear layer's weight.
struct WeightShape {
  int64_t N, K;
  bool operator==(const WeightShape&) const = default;
};
// q; k or v; q, k and v together; o; gate or up; both together; down; LM head. Each shape once; vocab_size 0
// omits the last.
std::vector<WeightShape> weight_shapes(const ModelConfig& config);

// "512x4096x14336" = T x N x K. Error(kUsage) otherwise.
GemmCase parse_gemm_shape(const std::string& text);

using GemmImplementation = Implementation<GemmKernels>;

// "amx (amx_bf16)"; for float32 the implementation it delegates these products to.
std::string gemm_implementation_text(const GemmImplementation& implementation, DType dtype);

// Verifies and measures one product. `others` are compared in the same rounds. Error(kInternal) for a wrong
// result, Error(kBadConfig) if the operands do not fit in memory.
BenchLine run_gemm_case(const GemmCase& c, const GemmImplementation& ours,
                        const std::vector<GemmImplementation>& others, const MeasureOptions& options,
                        ThreadPool& pool);
// Measures the product on a device with memory of its own, in device time.
BenchLine run_device_gemm_case(const GemmCase& c, const BenchDevice& device, const MeasureOptions& options);
// The product with a quantized weight, compared with `other`, whose weight has the dtype of the activations.
// First checks that the result equals the other's up to quantization. Error(kUsage) unless the product is
// kForward or kBackwardInput.
BenchLine run_quantized_case(const GemmCase& c, Quantization form, const GemmImplementation& other,
                             const MeasureOptions& options, ThreadPool& pool);

}  // namespace tessera
