#include "bench/kernels/optimizer_bench.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "bench/kernels/verify.h"
#include "bench/surroundings.h"
#include "devices/measure/random_tensor.h"
#include "optim/state_tensor.h"

namespace tessera {
namespace {

constexpr int64_t kComparedElements = 1000;
constexpr int64_t kComparedBlocks = 32;

// Weights, their remainders, a gradient and both moments of one flat range.
class OptimizerOperands {
 public:
  OptimizerOperands(const OptimizerCase& c, ThreadPool& pool)
      : dtype_(c.dtype),
        pool_(pool),
        weights_(c.dtype, {c.num_parameters}, 1, 0.02f, pool),
        gradient_(DType::kF32, {c.num_parameters}, 2, 1e-3f, pool),
        m_(DType::kF32, {c.num_parameters}, 3, 1e-3f, pool),
        v_(DType::kF32, {c.num_parameters}, 4, 1e-3f, pool),
        remainders_(c.dtype == DType::kBF16 ? c.num_parameters * 2 : 0),
        m_codes_(c.has_coded_moments ? state_bytes(DType::kI8, c.num_parameters) : 0),
        v_codes_(m_codes_.size_bytes()) {
    constexpr int64_t kBlock = 1 << 16;
    float* v = v_.view().as<float>();
    const std::span<int16_t> remainders = remainders_.as<int16_t>();
    const uint32_t* noise = reinterpret_cast<const uint32_t*>(gradient_.view().bytes());
    pool.parallel_blocks(c.num_parameters, kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        v[i] *= v[i];
        if (!remainders.empty()) remainders[static_cast<size_t>(i)] = static_cast<int16_t>(noise[i] & 0xFFFF);
      }
      if (!is_coded()) return;
      const auto count = static_cast<size_t>(end - begin);
      const int64_t at = state_bytes(DType::kI8, begin);
      encode_values(DType::kI8, {m_.view().as<float>() + begin, count}, m_codes_.data() + at);
      encode_values(DType::kU8, {v + begin, count}, v_codes_.data() + at);
    });
  }

  static int64_t size_bytes(const OptimizerCase& c) {
    return c.num_parameters * 4 * 4 +
           (c.has_coded_moments ? 2 * state_bytes(DType::kI8, c.num_parameters) : 0);
  }

  void run(const AdamWKernels& kernels) {
    std::byte* const moments[] = {is_coded() ? m_codes_.data() : m_.view().bytes(),
                                  is_coded() ? v_codes_.data() : v_.view().bytes()};
    kernels.update({.weights = weights_.view(),
                    .remainders = remainders_.as<int16_t>().data(),
                    .gradient = {gradient_.view().as<float>(), size()},
                    .state = moments},
                   form(), scalars_, pool_);
  }

  // Runs one update and compares the float32 master weights and moments of a sample (with codes: of the first
  // blocks) with the reference implementation's: all implementations give the same bits.
  Verification verify(const std::string& what, const AdamWKernels& kernels) {
    const int64_t num_parameters = gradient_.view().num_elements();
    std::vector<int64_t> sampled(static_cast<size_t>(std::min(num_parameters, kComparedBlocks * kCodeBlock)));
    std::iota(sampled.begin(), sampled.end(), 0);
    if (!is_coded()) sampled = sample_indices(num_parameters, kComparedElements);
    std::vector<float> weight, gradient, m, v;
    for (const int64_t i : sampled) {
      weight.push_back(master(i));
      gradient.push_back(gradient_.view().as<float>()[i]);
      m.push_back(moment(m_, m_codes_, DType::kI8, i));
      v.push_back(moment(v_, v_codes_, DType::kU8, i));
    }
    const auto update_reference = [&](std::byte* m_state, std::byte* v_state) {
      std::byte* const moments[] = {m_state, v_state};
      const TensorView weights(weight.data(), DType::kF32, {std::ssize(weight)});
      update_ref<AdamWRule>().front().kernels.update(
          {.weights = weights, .gradient = gradient, .state = moments}, form(), scalars_, pool_);
    };
    if (is_coded()) {
      PageBuffer m_codes(state_bytes(DType::kI8, std::ssize(sampled))), v_codes(m_codes.size_bytes());
      std::copy_n(m_codes_.data(), m_codes.size_bytes(), m_codes.data());
      std::copy_n(v_codes_.data(), v_codes.size_bytes(), v_codes.data());
      update_reference(m_codes.data(), v_codes.data());
      read_codes(DType::kI8, m_codes.data(), 0, m);
      read_codes(DType::kU8, v_codes.data(), 0, v);
    } else {
      update_reference(reinterpret_cast<std::byte*>(m.data()), reinterpret_cast<std::byte*>(v.data()));
    }
    run(kernels);
    Verification result;
    Verifier verifier(what, result);
    for (size_t at = 0; at < sampled.size(); ++at) {
      const int64_t i = sampled[at];
      verifier.compare("m", 0, i, moment(m_, m_codes_, DType::kI8, i), static_cast<double>(m[at]), 0);
      verifier.compare("v", 0, i, moment(v_, v_codes_, DType::kU8, i), static_cast<double>(v[at]), 0);
      verifier.compare("weight", 0, i, static_cast<double>(master(i)), static_cast<double>(weight[at]), 0);
    }
    return result;
  }

 private:
  size_t size() const { return static_cast<size_t>(gradient_.view().num_elements()); }
  MomentForm form() const { return is_coded() ? MomentForm::kCodes : MomentForm::kF32; }
  bool is_coded() const { return m_codes_.size_bytes() > 0; }
  float moment(const RandomTensor& values, const PageBuffer& codes, DType dtype, int64_t i) const {
    float value = values.view().as<float>()[i];
    if (is_coded()) read_codes(dtype, codes.data(), i, {&value, 1});
    return value;
  }
  float master(int64_t i) const {
    if (dtype_ == DType::kF32) return weights_.view().as<float>()[i];
    return join_master(weights_.view().as<bf16>()[i], remainders_.as<int16_t>()[static_cast<size_t>(i)]);
  }

  DType dtype_;
  ThreadPool& pool_;
  RandomTensor weights_, gradient_, m_, v_;
  PageBuffer remainders_;
  PageBuffer m_codes_, v_codes_;  // empty: the moments are m_ and v_
  AdamWScalars scalars_ = AdamWRule::scalars({.step = 10,
                                              .learning_rate = 1e-4,
                                              .beta1 = 0.9,
                                              .beta2 = 0.999,
                                              .epsilon = 1e-8,
                                              .weight_decay = 0.01,
                                              .gradient_scale = 0.5});
};

BenchLine line_of(const std::string& operation, DType dtype, int64_t num_parameters, int64_t num_bytes) {
  BenchLine line;
  line.benchmark = "optimizer";
  line.operation = operation;
  line.shape = {{"parameters", num_parameters}};
  line.dtype = dtype_name(dtype);
  line.unit = "GB/s";
  line.peak_name = "memory";
  line.amount = static_cast<double>(num_bytes) * 1e-9;
  return line;
}

}  // namespace

int64_t update_bytes(const OptimizerCase& c) {
  const int64_t moments = c.has_coded_moments ? state_bytes(DType::kI8, c.num_parameters) +
                                                    state_bytes(DType::kU8, c.num_parameters)
                                              : 2 * state_bytes(DType::kF32, c.num_parameters);
  return c.num_parameters * (2 * 4 + 4) + 2 * moments;
}

BenchLine run_optimizer_case(const OptimizerCase& c, const AdamWImplementation& ours,
                             const std::vector<AdamWImplementation>& others, const MeasureOptions& options,
                             BandwidthMeter& bandwidth, ThreadPool& pool) {
  const char* const moments = c.has_coded_moments ? "_8bit" : "";
  const std::string what =
      fmt::format("adamw{} {}, {}", moments, dtype_name(c.dtype), count_of(c.num_parameters, "parameter"));
  check_bench_memory(what, OptimizerOperands::size_bytes(c));
  OptimizerOperands operands(c, pool);
  BenchLine line = line_of(fmt::format("adamw_{}{}", c.dtype == DType::kBF16 ? "bf16" : "f32", moments),
                           c.dtype, c.num_parameters, update_bytes(c));
  measure_against_peak(
      what, ours, others, options, [&](const auto& kernels) { operands.run(kernels); },
      [&](const std::string& who, const auto& kernels) { return operands.verify(who, kernels); },
      [&] { return bandwidth.measure_best(options.turn_seconds); }, &line);
  return line;
}

BenchLine run_gradient_norm_case(int64_t num_parameters, const Implementation<ElementwiseKernels>& ours,
                                 const MeasureOptions& options, BandwidthMeter& bandwidth, ThreadPool& pool) {
  const std::string what = "gradient_norm, " + count_of(num_parameters, "parameter");
  check_bench_memory(what, num_parameters * dtype_bytes(DType::kF32));
  const RandomTensor gradient(DType::kF32, {num_parameters}, 2, 1e-3f, pool);
  const PageBuffer scratch(std::max<int64_t>(64, sum_of_squares_scratch_bytes(num_parameters)));
  const std::span<const float> values(gradient.view().as<float>(), static_cast<size_t>(num_parameters));
  const auto run = [&](const ElementwiseKernels& kernels) {
    return kernels.sum_of_squares(values, scratch.as<std::byte>(), pool);
  };
  BenchLine line =
      line_of("gradient_norm", DType::kF32, num_parameters, num_parameters * dtype_bytes(DType::kF32));
  measure_against_peak(
      what, ours, std::vector<Implementation<ElementwiseKernels>>(), options, run,
      [&](const std::string& who, const auto& kernels) {
        Verification result;
        Verifier verifier(who, result);
        verify_sum_of_squares(verifier, gradient.view(), run(kernels));
        return result;
      },
      [&] { return bandwidth.measure_best(options.turn_seconds); }, &line);
  return line;
}

}  // namespace tessera
