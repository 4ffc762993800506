#include "bench/kernels/quantized_bench.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "bench/surroundings.h"
#include "devices/measure/random_tensor.h"
#include "kernels/expected.h"
#include "kernels/quantized_weight/quantized_weight.h"
#include "kernels/quantized_weight/quantized_weight_impl.h"

namespace tessera {
namespace {

// Cold copies of a weight, and of its quantised form.
class QuantizedOperands {
 public:
  QuantizedOperands(const GemmCase& c, Quantization form, int64_t cold_bytes, int64_t scratch_bytes,
                    ThreadPool& pool)
      : case_(c),
        form_({form, nullptr, c.N, c.K}),
        pool_(pool),
        x_(c.dtype, {c.T, c.K}, 1, 1, pool),
        y_(c.dtype, {c.T, c.N}, 2, 1, pool),
        weights_(c.dtype, {c.N, c.K}, cold_bytes, 1, pool),
        forms_(form_.size_bytes() * weights_.num_copies()),
        scratch_(scratch_bytes) {
    std::vector<float> rows(static_cast<size_t>(c.K));
    for (int64_t i = 0; i < weights_.num_copies(); ++i) {
      MatrixQuantizer quantizer(form_of<std::byte>(i), 0);
      for (int64_t n = 0; n < c.N; ++n) {
        const ConstTensorView row = weights_.copy(i).rows(n, n + 1);
        for (int64_t k = 0; k < c.K; ++k) rows[static_cast<size_t>(k)] = static_cast<float>(element(row, k));
        quantizer.add(ConstTensorView(rows.data(), DType::kF32, {1, c.K}), pool);
      }
    }
  }

  void run_quantized() {
    const auto weight = form_of<const std::byte>(weights_.next_index());
    if (case_.product == Product::kForward) {
      quantized_forward(x_.view(), weight, {}, y_.view(), scratch_.as<std::byte>(), pool_);
    } else {
      quantized_backward_input(y_.view(), weight, x_.view(), scratch_.as<std::byte>(), pool_);
    }
  }
  void run(const GemmKernels& kernels) {
    const ConstTensorView weight = weights_.next();
    if (case_.product == Product::kForward) {
      kernels.forward(x_.view(), weight, {}, y_.view(), scratch_.as<std::byte>(), pool_);
    } else {
      kernels.backward_input(y_.view(), weight, x_.view(), Update::kOverwrite, scratch_.as<std::byte>(),
                             pool_);
    }
  }

  // The root mean square of the difference of the two results, as a share of that of `kernels`.
  double distance(const GemmKernels& kernels) {
    const auto use_first_copy_next = [&] {
      while (weights_.next_index() != weights_.num_copies() - 1) {
      }
    };
    const auto result = [&] {
      const TensorView out = case_.product == Product::kForward ? y_.view() : x_.view();
      std::vector<float> values(static_cast<size_t>(out.num_elements()));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(element(out, static_cast<int64_t>(i)));
      }
      return values;
    };
    use_first_copy_next();
    run(kernels);
    const std::vector<float> expected = result();
    use_first_copy_next();
    run_quantized();
    const std::vector<float> found = result();
    double squares = 0, of_difference = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      squares += std::pow(expected[i], 2);
      of_difference += std::pow(found[i] - expected[i], 2);
    }
    return std::sqrt(of_difference / squares);
  }

 private:
  template <typename Byte>
  QuantizedMatrix<Byte> form_of(int64_t copy) {
    return {form_.kind, forms_.data() + copy * form_.size_bytes(), case_.N, case_.K};
  }

  GemmCase case_;
  ConstQuantizedMatrix form_;
  ThreadPool& pool_;
  RandomTensor x_, y_;
  ColdCopies weights_;
  PageBuffer forms_, scratch_;
};

}  // namespace

BenchLine run_quantized_case(const GemmCase& c, Quantization form, const GemmImplementation& other,
                             const MeasureOptions& options, ThreadPool& pool) {
  if (c.product != Product::kForward && c.product != Product::kBackwardInput) {
    fail(ExitCode::kUsage, "--products: expected forward or backward_input of weights in {}, found {}",
         quantization_name(form), product_name(c.product));
  }
  const ConstQuantizedMatrix weight = {form, nullptr, c.N, c.K};
  const int64_t scratch =
      std::max(quantized_scratch_bytes(weight, c.T, c.dtype, pool.num_threads(), true),
               max_scratch_bytes(other.kernels, {c.T, {c.N, c.K}, c.dtype, pool.num_threads()}));
  const int64_t weight_bytes = ColdCopies::size_bytes(c.dtype, {c.N, c.K}, options.cold_bytes);
  const std::string what = fmt::format("gemm {} T {} N {} K {} {}", product_name(c.product), c.T, c.N, c.K,
                                       quantization_name(form));
  check_bench_memory(what, 2 * weight_bytes + c.T * (c.K + c.N) * dtype_bytes(c.dtype) + scratch);
  QuantizedOperands operands(c, form, options.cold_bytes, scratch, pool);
  const double most = form == Quantization::kInt8 ? 0.03 : 0.2;
  if (const double distance = operands.distance(other.kernels); !(distance < most)) {
    fail(ExitCode::kInternal, "{}: expected results within {} of those of {}, found {}", what, most,
         implementation_text(other), distance);
  }

  BenchLine line;
  line.benchmark = "gemm";
  line.operation = product_name(c.product);
  line.shape = {{"T", c.T}, {"N", c.N}, {"K", c.K}};
  line.amount = c.flop() * 1e-12;
  line.dtype = quantization_name(form);
  line.unit = "TFLOPS";
  line.implementation = form == Quantization::kInt8
                            ? implementation_text(int8_product_table().chosen_implementation())
                            : implementation_text(other);
  line.others.push_back({implementation_text(other), {}, {}});
  ComputePeakMeter peak = make_peak_meter(pool, c.dtype);
  line.peak_name = peak.instruction_set();
  const std::vector<Participant> participants = {
      [&] { return speed_of([&] { operands.run_quantized(); }, line.amount, options.turn_seconds); },
      [&] { return peak.measure(options.turn_seconds); },
      [&] { return speed_of([&] { operands.run(other.kernels); }, line.amount, options.turn_seconds); }};
  fill_statistics(measure_in_turn(participants, options), &line);
  return line;
}

}  // namespace tessera
