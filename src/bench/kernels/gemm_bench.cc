#include "bench/kernels/gemm_bench.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "bench/kernels/verify.h"
#include "bench/surroundings.h"
#include "devices/measure/random_tensor.h"
#include "kernels/expected.h"
#include "kernels/gemm/onednn_products.h"
#include "kernels/quantized_weight/quantized_weight.h"
#include "kernels/quantized_weight/quantized_weight_impl.h"

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
  return max_scratch_bytes(implementation.kernels, {c.T, weight, c.dtype, num_threads});
}

// The operands of one call: x [T, K], y or dy [T, N], w or dw [N, K].
struct GemmTensors {
  TensorView x, y, w;
  int64_t copy = 0;  // index of the weight
  PackedForms packed = {};

  LinearWeight weight() const { return {w, packed}; }
};

// Activations, and cold copies of the weight, in the memory of a device; packed for `packed_for` if that uses
// packed forms.
class GemmOperands {
 public:
  GemmOperands(const GemmCase& c, int64_t cold_bytes, int64_t scratch_bytes, const GemmKernels* packed_for,
               ThreadPool& pool, Device& device = host_device())
      : case_(c),
        x_(c.dtype, {c.T, c.K}, 0, 1, pool, /*seed=*/1, device),
        y_(c.dtype, {c.T, c.N}, 0, 1, pool, /*seed=*/2, device),
        weights_(weight_dtype(c), {c.N, c.K}, cold_bytes, 1, pool, /*seed=*/0, device),
        packed_bytes_(packed_for == nullptr ? 0 : packed_bytes(c, *packed_for)),
        packed_(packed_bytes_ * weights_.num_copies()),
        scratch_(device.allocate(std::max<int64_t>(64, scratch_bytes))) {
    for (int64_t i = 0; packed_bytes_ > 0 && i < weights_.num_copies(); ++i)
      packed_for->pack(weights_.copy(i), tensors(i).packed, {0, c.N}, pool);
  }

  static int64_t size_bytes(const GemmCase& c, int64_t cold_bytes, int64_t scratch_bytes,
                            const GemmKernels* packed_for) {
    const int64_t weight_bytes = ColdCopies::size_bytes(weight_dtype(c), {c.N, c.K}, cold_bytes);
    const int64_t num_copies = weight_bytes / (c.N * c.K * dtype_bytes(weight_dtype(c)));
    return c.T * (c.K + c.N) * dtype_bytes(c.dtype) + weight_bytes + scratch_bytes +
           (packed_for == nullptr ? 0 : num_copies * packed_bytes(c, *packed_for));
  }

  GemmTensors next() { return tensors(weights_.next_index()); }
  GemmTensors tensors(int64_t copy) const {
    GemmTensors all = {x_.copy(0), y_.copy(0), weights_.copy(copy), copy};
    if (packed_bytes_ > 0) {
      std::byte* const form = packed_.data() + copy * packed_bytes_;
      (case_.product == Product::kForward ? all.packed.forward : all.packed.backward_input) = form;
    }
    return all;
  }
  int64_t num_copies() const { return weights_.num_copies(); }
  std::span<std::byte> scratch() const { return scratch_.span(); }
  TensorView output(const GemmTensors& of) const {
    if (case_.product == Product::kForward) return of.y;
    return case_.product == Product::kBackwardInput ? of.x : of.w;
  }

  // Runs once with poisoned outputs and compares samples.
  Verification verify(const std::string& what, FunctionRef<void(const GemmTensors&)> run) {
    const GemmTensors tensors = next();
    const TensorView out = output(tensors);
    const std::vector<SamplePoint> points = sample_points(out.dim(0), out.dim(1), kNumSamples);
    std::vector<double> former;
    HostTensor before(out);
    if (case_.product == Product::kBackwardWeightAdd) {
      former = values_at(before.view(), points);
    } else {
      for (const auto& [row, column] : points) set_element(before.view(), row * out.dim(1) + column, NAN);
      before.write_back();
    }
    run(tensors);
    Verification result;
    Verifier verifier(what, result);
    const HostTensor x(tensors.x), y(tensors.y), w(tensors.w);
    if (case_.product == Product::kForward) {
      verify_product(verifier, {x.view()}, {w.view()}, y.view(), points, former);
    } else if (case_.product == Product::kBackwardInput) {
      verify_product(verifier, {y.view()}, {w.view(), true}, x.view(), points, former);
    } else {
      verify_product(verifier, {y.view(), true}, {x.view(), true}, w.view(), points, former);
    }
    return result;
  }

 private:
  static DType weight_dtype(const GemmCase& c) {
    return makes_weight_gradient(c.product) ? DType::kF32 : c.dtype;
  }

  GemmCase case_;
  ColdCopies x_, y_, weights_;
  int64_t packed_bytes_;
  PageBuffer packed_;  // [copies of weights_][packed_bytes_]
  DeviceBuffer scratch_;
};

void multiply(Product product, const GemmTensors& of, const GemmKernels& kernels,
              std::span<std::byte> scratch, ThreadPool& pool) {
  switch (product) {
    case Product::kForward:
      return kernels.forward(of.x, of.weight(), /*bias_N=*/{}, of.y, scratch, pool);
    case Product::kBackwardInput:
      return kernels.backward_input(of.y, of.weight(), of.x, Update::kOverwrite, scratch, pool);
    case Product::kBackwardWeight:
      return kernels.backward_weight(of.y, of.x, of.w, Update::kOverwrite, scratch, pool);
    case Product::kBackwardWeightAdd:
      return kernels.backward_weight(of.y, of.x, of.w, Update::kAdd, scratch, pool);
  }
}

void multiply(Product product, const GemmTensors& of, Ops& ops) {
  switch (product) {
    case Product::kForward:
      return ops.linear(of.x, of.weight(), {}, of.y);
    case Product::kBackwardInput:
      return ops.linear_backward_input(of.y, of.weight(), of.x, Update::kOverwrite);
    case Product::kBackwardWeight:
      return ops.linear_backward_weight(of.y, of.x, of.w, {Update::kOverwrite, nullptr});
    case Product::kBackwardWeightAdd:
      return ops.linear_backward_weight(of.y, of.x, of.w, {Update::kAdd, nullptr});
  }
}

std::string case_text(const GemmCase& c, std::string_view of_type) {
  return fmt::format("gemm {} T {} N {} K {} {}", product_name(c.product), c.T, c.N, c.K, of_type);
}

BenchLine line_of(const GemmCase& c) {
  BenchLine line;
  line.benchmark = "gemm";
  line.operation = product_name(c.product);
  line.shape = {{"T", c.T}, {"N", c.N}, {"K", c.K}};
  line.amount = c.flop() * 1e-12;
  return line;
}

// The quantized forms of all copies of the weight.
class QuantizedCopies {
 public:
  QuantizedCopies(const GemmCase& c, Quantization kind, const GemmOperands& operands, ThreadPool& pool)
      : form_({kind, nullptr, c.N, c.K}), memory_(form_.size_bytes() * operands.num_copies()) {
    std::vector<float> row(static_cast<size_t>(c.K));
    for (int64_t i = 0; i < operands.num_copies(); ++i) {
      MatrixQuantizer quantizer(QuantizedMatrix<std::byte>{kind, address(i), c.N, c.K}, 0);
      for (int64_t n = 0; n < c.N; ++n) {
        const ConstTensorView from = operands.tensors(i).w.rows(n, n + 1);
        for (int64_t k = 0; k < c.K; ++k) row[static_cast<size_t>(k)] = static_cast<float>(element(from, k));
        quantizer.add(ConstTensorView(row.data(), DType::kF32, {1, c.K}), pool);
      }
    }
  }

  void multiply(Product product, const GemmTensors& of, std::span<std::byte> scratch,
                ThreadPool& pool) const {
    ConstQuantizedMatrix weight = form_;
    weight.data = address(of.copy);
    if (product == Product::kForward) {
      quantized_forward(of.x, weight, {}, of.y, scratch, pool);
    } else {
      quantized_backward_input(of.y, weight, of.x, scratch, pool);
    }
  }

 private:
  std::byte* address(int64_t copy) const { return memory_.data() + copy * form_.size_bytes(); }

  ConstQuantizedMatrix form_;
  PageBuffer memory_;
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

BenchLine run_gemm_case(const GemmCase& c, const GemmImplementation& ours,
                        const std::vector<GemmImplementation>& others, const MeasureOptions& options,
                        ThreadPool& pool) {
  const std::string what = case_text(c, dtype_name(c.dtype));
  int64_t scratch = scratch_bytes(c, ours, pool.num_threads());
  for (const GemmImplementation& other : others)
    scratch = std::max(scratch, scratch_bytes(c, other, pool.num_threads()));
  check_bench_memory(what, GemmOperands::size_bytes(c, options.cold_bytes, scratch, &ours.kernels));
  GemmOperands operands(c, options.cold_bytes, scratch, &ours.kernels, pool);
  BenchLine line = line_of(c);
  const auto run = [&](const GemmTensors& of, const GemmKernels& kernels) {
    multiply(c.product, of, kernels, operands.scratch(), pool);
  };
  measure_arithmetic(
      what, ours, others, options, c.dtype,
      [&](const GemmKernels& kernels) { run(operands.next(), kernels); },
      [&](const std::string& who, const GemmKernels& kernels) {
        return operands.verify(who, [&](const GemmTensors& of) { run(of, kernels); });
      },
      pool, &line);
  line.implementation = gemm_implementation_text(ours, c.dtype);
  return line;
}

BenchLine run_device_gemm_case(const GemmCase& c, const BenchDevice& device, const MeasureOptions& options) {
  const std::string what = case_text(c, dtype_name(c.dtype));
  OpsLimits limits = {};
  limits.max_tokens = c.T;
  limits.hidden_size = c.K;
  limits.dtype = c.dtype;
  limits.training = c.product != Product::kForward;
  limits.linears = {{c.T, {c.N, c.K}}};
  const int64_t scratch = device.ops.workspace_bytes(limits);
  check_device_memory(what, GemmOperands::size_bytes(c, options.cold_bytes, scratch, nullptr),
                      device.ops.device());
  GemmOperands operands(c, options.cold_bytes, scratch, nullptr, device.pool, device.ops.device());
  BenchLine line = line_of(c);
  device.ops.bind_workspace(operands.scratch());
  const auto run = [&](const GemmTensors& of) { multiply(c.product, of, device.ops); };
  line.verification = operands.verify(fmt::format("{}, {}", what, device.ops.description()), run);
  measure_on_device([&] { run(operands.next()); }, operands.scratch(), c.dtype, device, options, &line);
  return line;
}

BenchLine run_quantized_case(const GemmCase& c, Quantization form, const GemmImplementation& other,
                             const MeasureOptions& options, ThreadPool& pool) {
  if (makes_weight_gradient(c.product)) {
    fail(ExitCode::kUsage, "--products: expected forward or backward_input of weights in {}, found {}",
         quantization_name(form), product_name(c.product));
  }
  const std::string what = case_text(c, quantization_name(form));
  const int64_t scratch =
      std::max(quantized_scratch_bytes(ConstQuantizedMatrix{form, nullptr, c.N, c.K}, c.T, c.dtype,
                                       pool.num_threads(), true),
               max_scratch_bytes(other.kernels, {c.T, {c.N, c.K}, c.dtype, pool.num_threads()}));
  check_bench_memory(what, 2 * GemmOperands::size_bytes(c, options.cold_bytes, scratch, nullptr));
  GemmOperands operands(c, options.cold_bytes, scratch, nullptr, pool);
  const QuantizedCopies quantized(c, form, operands, pool);
  const auto run = [&](const GemmTensors& of) {
    quantized.multiply(c.product, of, operands.scratch(), pool);
  };
  const auto run_other = [&](const GemmTensors& of) {
    multiply(c.product, of, other.kernels, operands.scratch(), pool);
  };

  // The root mean square of the difference of the two results, as a share of the other's.
  const auto result_of = [&](const auto& product) {
    product(operands.tensors(0));
    const ConstTensorView out = operands.output(operands.tensors(0));
    std::vector<float> values;
    for (int64_t i = 0; i < out.num_elements(); ++i) values.push_back(static_cast<float>(element(out, i)));
    return values;
  };
  const std::vector<float> expected = result_of(run_other), found = result_of(run);
  double squares = 0, of_difference = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    squares += std::pow(expected[i], 2);
    of_difference += std::pow(found[i] - expected[i], 2);
  }
  const double most = form == Quantization::kInt8 ? 0.03 : 0.2;
  if (const double distance = std::sqrt(of_difference / squares); !(distance < most)) {
    fail(ExitCode::kInternal, "{}: expected results within {} of those of {}, found {}", what, most,
         implementation_text(other), distance);
  }

  BenchLine line = line_of(c);
  line.dtype = quantization_name(form);
  line.unit = "TFLOPS";
  line.implementation = form == Quantization::kInt8
                            ? implementation_text(int8_product_table().chosen_implementation())
                            : implementation_text(other);
  line.others.push_back({implementation_text(other), {}, {}});
  ComputePeakMeter peak = make_peak_meter(pool, c.dtype);
  line.peak_name = peak.instruction_set();
  const std::vector<Participant> participants = {
      [&] { return speed_of([&] { run(operands.next()); }, line.amount, options.turn_seconds); },
      [&] { return peak.measure(options.turn_seconds); },
      [&] { return speed_of([&] { run_other(operands.next()); }, line.amount, options.turn_seconds); }};
  fill_statistics(measure_in_turn(participants, options), &line);
  return line;
}

}  // namespace tessera
