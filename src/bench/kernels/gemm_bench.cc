#include "bench/kernels/gemm_bench.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "bench/kernels/verify.h"
#include "bench/surroundings.h"
#include "devices/measure/random_tensor.h"
#include "kernels/gemm/onednn_products.h"

namespace tessera {
namespace {

constexpr int64_t kNumSamples = 128;

bool makes_weight_gradient(Product product) {
  return product == Product::kBackwardWeight || product == Product::kBackwardWeightAdd;
}

// Bytes of a weight in the packed form for this product; 0 = there is none.
int64_t packed_bytes(const GemmCase& c, const GemmKernels& kernels) {
  if (!c.pack_weights || makes_weight_gradient(c.product) || kernels.packed_bytes == nullptr) return 0;
  return kernels.packed_bytes(c.N, c.K, c.dtype);
}

int64_t scratch_bytes(const GemmCase& c, const GemmImplementation& implementation, int64_t num_threads) {
  const LinearShape weight = {c.N, c.K, packed_bytes(c, implementation.kernels) > 0 ? c.N : 0};
  return std::max<int64_t>(64,
                           max_scratch_bytes(implementation.kernels, {c.T, weight, c.dtype, num_threads}));
}

// x [T, K], y or dy [T, N] and cold copies of w or dw [N, K], packed for `ours` if it uses packed forms.
class GemmOperands {
 public:
  GemmOperands(const GemmCase& c, const GemmKernels& ours, int64_t cold_bytes, int64_t max_scratch_bytes,
               ThreadPool& pool)
      : case_(c),
        pool_(pool),
        x_(c.dtype, {c.T, c.K}, 1, 1, pool),
        y_(c.dtype, {c.T, c.N}, 2, 1, pool),
        weights_(weight_dtype(c), {c.N, c.K}, cold_bytes, 1, pool),
        packed_bytes_(packed_bytes(c, ours)),
        packed_(packed_bytes_ * weights_.num_copies()),
        scratch_(max_scratch_bytes) {
    for (int64_t i = 0; packed_bytes_ > 0 && i < weights_.num_copies(); ++i) {
      ours.pack(weights_.copy(i), forms_of(i), {0, c.N}, pool);
    }
  }

  static DType weight_dtype(const GemmCase& c) {
    return makes_weight_gradient(c.product) ? DType::kF32 : c.dtype;
  }
  static int64_t size_bytes(const GemmCase& c, const GemmKernels& ours, int64_t cold_bytes,
                            int64_t max_scratch_bytes) {
    const int64_t weight_bytes = ColdCopies::size_bytes(weight_dtype(c), {c.N, c.K}, cold_bytes);
    const int64_t num_copies = weight_bytes / (c.N * c.K * dtype_bytes(weight_dtype(c)));
    return c.T * (c.K + c.N) * dtype_bytes(c.dtype) + weight_bytes + num_copies * packed_bytes(c, ours) +
           max_scratch_bytes;
  }

  void run(const GemmKernels& kernels) { run(kernels, weights_.next_index()); }

  // Runs once with poisoned outputs and compares samples.
  Verification verify(const std::string& what, const GemmKernels& kernels) {
    const int64_t copy = weights_.next_index();
    const TensorView w = weights_.copy(copy);
    const TensorView out = output(w);
    const std::vector<SamplePoint> points = sample_points(out.dim(0), out.dim(1), kNumSamples);
    std::vector<double> former;
    if (case_.product == Product::kBackwardWeightAdd) {
      former = values_at(out, points);
    } else {
      for (const auto& [row, column] : points) set_element(out, row * out.dim(1) + column, NAN);
    }
    run(kernels, copy);
    Verification result;
    Verifier verifier(what, result);
    const ConstTensorView x = x_.view(), y = y_.view();
    switch (case_.product) {
      case Product::kForward:
        verify_product(verifier, {x}, {w}, out, points, former);
        break;
      case Product::kBackwardInput:
        verify_product(verifier, {y}, {w, true}, out, points, former);
        break;
      case Product::kBackwardWeight:
      case Product::kBackwardWeightAdd:
        verify_product(verifier, {y, true}, {x, true}, out, points, former);
        break;
    }
    return result;
  }

 private:
  TensorView output(TensorView w) const {
    if (case_.product == Product::kForward) return y_.view();
    return case_.product == Product::kBackwardInput ? x_.view() : w;
  }

  PackedForms forms_of(int64_t copy) const {
    std::byte* form = packed_.data() + copy * packed_bytes_;
    if (case_.product == Product::kForward) return {form, nullptr};
    return {nullptr, form};
  }

  void run(const GemmKernels& kernels, int64_t copy) {
    const std::span<std::byte> scratch = scratch_.as<std::byte>();
    const TensorView w = weights_.copy(copy);
    LinearWeight weight = w;
    if (packed_bytes_ > 0) weight = {w, forms_of(copy)};
    switch (case_.product) {
      case Product::kForward:
        return kernels.forward(x_.view(), weight, /*bias_N=*/{}, y_.view(), scratch, pool_);
      case Product::kBackwardInput:
        return kernels.backward_input(y_.view(), weight, x_.view(), Update::kOverwrite, scratch, pool_);
      case Product::kBackwardWeight:
        return kernels.backward_weight(y_.view(), x_.view(), w, Update::kOverwrite, scratch, pool_);
      case Product::kBackwardWeightAdd:
        return kernels.backward_weight(y_.view(), x_.view(), w, Update::kAdd, scratch, pool_);
    }
  }

  GemmCase case_;
  ThreadPool& pool_;
  RandomTensor x_, y_;
  ColdCopies weights_;
  int64_t packed_bytes_;
  PageBuffer packed_;  // [copies of weights_][packed_bytes_]
  PageBuffer scratch_;
};

}  // namespace

std::string_view product_name(Product product) {
  switch (product) {
    case Product::kForward:
      return "forward";
    case Product::kBackwardInput:
      return "backward_input";
    case Product::kBackwardWeight:
      return "backward_weight";
    case Product::kBackwardWeightAdd:
      return "backward_weight_add";
  }
  TESSERA_CHECK(false, "unknown product");
}

Product parse_product(const std::string& name) {
  std::vector<std::string_view> names;
  for (const Product product : kProducts) {
    names.push_back(product_name(product));
    if (names.back() == name) return product;
  }
  fail(ExitCode::kUsage, "--products: expected {}, found '{}'", fmt::join(names, ", "), printable(name));
}

std::vector<WeightShape> weight_shapes(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const int64_t q_width = config.num_attention_heads * config.head_dim;
  const int64_t kv_width = config.num_key_value_heads * config.head_dim;
  std::vector<WeightShape> shapes;
  for (const WeightShape shape :
       {WeightShape{q_width, hidden}, WeightShape{kv_width, hidden},
        WeightShape{q_width + 2 * kv_width, hidden}, WeightShape{hidden, q_width},
        WeightShape{intermediate, hidden}, WeightShape{2 * intermediate, hidden},
        WeightShape{hidden, intermediate}, WeightShape{config.vocab_size, hidden}}) {
    if (shape.N > 0 && std::find(shapes.begin(), shapes.end(), shape) == shapes.end())
      shapes.push_back(shape);
  }
  return shapes;
}

GemmCase parse_gemm_shape(const std::string& text) {
  GemmCase c;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  constexpr int64_t kMaxSize = int64_t{1} << 24;
  for (int64_t* size : {&c.T, &c.N, &c.K}) {
    const auto [next, error] = std::from_chars(at, end, *size);
    const bool last = size == &c.K;
    if (error != std::errc() || *size < 1 || *size > kMaxSize ||
        (last ? next != end : next == end || *next != 'x')) {
      fail(ExitCode::kUsage, "--shapes '{}': expected TxNxK, as in 512x4096x14336, each from 1 to {}",
           printable(text), kMaxSize);
    }
    at = next + 1;
  }
  return c;
}

std::string gemm_implementation_text(const GemmImplementation& implementation, DType dtype) {
  const std::string_view float32_name = implementation.kernels.float32_name;
  if (dtype == DType::kF32 && !float32_name.empty()) {
    return fmt::format("{} ({})", float32_name, isa_name(std::min(implementation.isa, onednn_isa())));
  }
  return implementation_text(implementation);
}

std::string gemm_case_text(const GemmCase& c) {
  return fmt::format("gemm {} T {} N {} K {} {}", product_name(c.product), c.T, c.N, c.K,
                     dtype_name(c.dtype));
}

BenchLine gemm_line(const GemmCase& c) {
  BenchLine line;
  line.benchmark = "gemm";
  line.operation = product_name(c.product);
  line.shape = {{"T", c.T}, {"N", c.N}, {"K", c.K}};
  line.amount = c.flop() * 1e-12;
  return line;
}

BenchLine run_gemm_case(const GemmCase& c, const GemmImplementation& ours,
                        const std::vector<GemmImplementation>& others, const MeasureOptions& options,
                        ThreadPool& pool) {
  const std::string what = gemm_case_text(c);
  int64_t max_scratch = scratch_bytes(c, ours, pool.num_threads());
  for (const GemmImplementation& other : others) {
    max_scratch = std::max(max_scratch, scratch_bytes(c, other, pool.num_threads()));
  }
  check_bench_memory(what, GemmOperands::size_bytes(c, ours.kernels, options.cold_bytes, max_scratch));
  GemmOperands operands(c, ours.kernels, options.cold_bytes, max_scratch, pool);

  BenchLine line = gemm_line(c);
  measure_arithmetic(what, ours, others, options, c.dtype, operands, pool, &line);
  line.implementation = gemm_implementation_text(ours, c.dtype);
  return line;
}

}  // namespace tessera
