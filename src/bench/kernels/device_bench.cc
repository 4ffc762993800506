#include "bench/kernels/device_bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "bench/kernels/verify.h"
#include "devices/measure/random_tensor.h"

namespace tessera {
namespace {

constexpr int64_t kDeviceSamples = 128;
constexpr int64_t kProductsOfATurn = 2;  // a turn; an H100 takes 3 ms

void check_device_memory(const std::string& what, int64_t needed_bytes, const Device& device) {
  const std::optional<Device::OwnMemory> memory = device.own_memory();
  TESSERA_CHECK(memory.has_value(), "{}", device.name());
  if (needed_bytes <= memory->free_bytes) return;
  fail(ExitCode::kBadConfig, "{}: needs {} of memory, {} are free on {}; use smaller shapes", what,
       format_bytes(needed_bytes), format_bytes(memory->free_bytes), device.name());
}

// A tensor of the host and its copies on a device, which a benchmark walks through.
class DeviceTensor {
 public:
  DeviceTensor(DType dtype, Shape shape, int64_t min_bytes, uint64_t seed, Device& device, ThreadPool& pool)
      : host_(dtype, shape, seed, 1, pool),
        memory_(device.allocate(size_bytes(dtype, shape, min_bytes))),
        num_copies_(memory_.size_bytes() / copy_bytes(dtype, shape)) {
    for (int64_t i = 0; i < num_copies_; ++i) upload(i);
  }
  static int64_t size_bytes(DType dtype, const Shape& shape, int64_t min_bytes) {
    const int64_t bytes = copy_bytes(dtype, shape);
    return round_up(std::max(min_bytes, bytes), bytes);
  }

  TensorView host() const { return host_.view(); }
  TensorView on_device(int64_t copy = 0) const {
    return TensorView(memory_.address() + copy * copy_bytes(host().dtype(), host().shape()), host().dtype(),
                      host().shape(), memory_.device());
  }
  TensorView next() { return on_device(std::exchange(next_, (next_ + 1) % num_copies_)); }

  void upload(int64_t copy = 0) { tessera::copy(host(), on_device(copy)); }
  void download(int64_t copy = 0) { tessera::copy(on_device(copy), host()); }
  // What no operation yields, so that an element that is not written is found.
  void poison(int64_t copy = 0) {
    std::memset(host().bytes(), 0xFF, static_cast<size_t>(host().size_bytes()));
    upload(copy);
  }

 private:
  static int64_t copy_bytes(DType dtype, const Shape& shape) {
    return round_up(shape.num_elements() * dtype_bytes(dtype), 256);  // as an allocation is aligned
  }

  RandomTensor host_;
  DeviceBuffer memory_;
  int64_t num_copies_;
  int64_t next_ = 0;
};

// A turn of about turn_seconds of device time: 10^12 operations per second.
double device_speed_of(FunctionRef<void()> body, double amount, DeviceClock& clock, double turn_seconds) {
  constexpr double kMostCalls = 1e4;
  const auto seconds_of_calls = [&](double calls) {
    double seconds = 0;
    clock.begin();
    for (double i = 0; i < calls; ++i) body();
    clock.end(&seconds);
    clock.finish();
    return seconds;
  };
  const double one = seconds_of_calls(1);
  const double calls = std::clamp(std::ceil(turn_seconds / one), 1.0, kMostCalls);
  return calls * amount / seconds_of_calls(calls);
}

// Fills in all of the line that is the same for every benchmark of a device.
void measure_on_device(FunctionRef<void()> body, DType dtype, const BenchDevice& device,
                       const MeasureOptions& options, std::span<std::byte> workspace, BenchLine* line) {
  const std::unique_ptr<DeviceClock> clock = device.ops.device().make_clock();
  line->dtype = dtype_name(dtype);
  line->unit = "TFLOPS";
  line->peak_name = fmt::format("square products, {}", device.peak.arithmetic());
  line->implementation = device.ops.description();
  const Participant participants[] = {
      [&] {
        device.ops.bind_workspace(workspace);
        return device_speed_of(body, line->amount, *clock, options.turn_seconds);
      },
      [&] { return device.peak.measure(kProductsOfATurn); },
  };
  fill_statistics(measure_in_turn(participants, options), line);
}

// x [T, K], y or dy [T, N] and cold copies of w or dw [N, K].
class DeviceProduct {
 public:
  DeviceProduct(const GemmCase& c, const BenchDevice& device, int64_t cold_bytes)
      : case_(c),
        ops_(device.ops),
        x_(c.dtype, {c.T, c.K}, 0, 1, ops_.device(), device.pool),
        y_(c.dtype, {c.T, c.N}, 0, 2, ops_.device(), device.pool),
        w_(weight_dtype(c), {c.N, c.K}, cold_bytes, 3, ops_.device(), device.pool),
        workspace_(ops_.device().allocate(ops_.workspace_bytes(limits(c)))) {}

  static int64_t size_bytes(const GemmCase& c, const Ops& ops, int64_t cold_bytes) {
    return DeviceTensor::size_bytes(c.dtype, {c.T, c.K}, 0) +
           DeviceTensor::size_bytes(c.dtype, {c.T, c.N}, 0) +
           DeviceTensor::size_bytes(weight_dtype(c), {c.N, c.K}, cold_bytes) + ops.workspace_bytes(limits(c));
  }

  std::span<std::byte> workspace() const { return workspace_.span(); }
  void run() { run(w_.next()); }

  Verification verify(const std::string& what) {
    DeviceTensor& output = case_.product == Product::kForward         ? y_
                           : case_.product == Product::kBackwardInput ? x_
                                                                      : w_;
    const std::vector<SamplePoint> points =
        sample_points(output.host().dim(0), output.host().dim(1), kDeviceSamples);
    std::vector<double> before;
    if (case_.product == Product::kBackwardWeightAdd) {
      before = values_at(output.host(), points);
    } else {
      output.poison();
    }
    ops_.bind_workspace(workspace());
    run(w_.on_device());
    output.download();
    Verification result;
    Verifier verifier(what, result);
    const ConstTensorView x = x_.host(), y = y_.host(), w = w_.host();
    if (case_.product == Product::kForward) {
      verify_product(verifier, {x}, {w}, y, points, before);
    } else if (case_.product == Product::kBackwardInput) {
      verify_product(verifier, {y}, {w, true}, x, points, before);
    } else {
      verify_product(verifier, {y, true}, {x, true}, w, points, before);
    }
    return result;
  }

 private:
  static DType weight_dtype(const GemmCase& c) {
    const bool is_gradient =
        c.product == Product::kBackwardWeight || c.product == Product::kBackwardWeightAdd;
    return is_gradient ? DType::kF32 : c.dtype;
  }
  static OpsLimits limits(const GemmCase& c) {
    OpsLimits limits = {};
    limits.max_tokens = c.T;
    limits.hidden_size = c.K;
    limits.dtype = c.dtype;
    limits.training = c.product != Product::kForward;
    limits.linears = {{c.T, {c.N, c.K}}};
    return limits;
  }

  void run(TensorView w) {
    const TensorView x = x_.on_device(), y = y_.on_device();
    switch (case_.product) {
      case Product::kForward:
        return ops_.linear(x, w, {}, y);
      case Product::kBackwardInput:
        return ops_.linear_backward_input(y, w, x, Update::kOverwrite);
      case Product::kBackwardWeight:
        return ops_.linear_backward_weight(y, x, w, {Update::kOverwrite, nullptr});
      case Product::kBackwardWeightAdd:
        return ops_.linear_backward_weight(y, x, w, {Update::kAdd, nullptr});
    }
  }

  GemmCase case_;
  Ops& ops_;
  DeviceTensor x_, y_, w_;
  DeviceBuffer workspace_;
};

class DeviceAttention {
 public:
  DeviceAttention(const AttentionCase& c, const BenchDevice& device)
      : case_(c),
        ops_(device.ops),
        shape_(c.shape()),
        qkv_(c.dtype, qkv_shape(c), 0, 1, ops_.device(), device.pool),
        o_(c.dtype, o_shape(c), 0, 2, ops_.device(), device.pool),
        lse_(DType::kF32, lse_shape(c), 0, 3, ops_.device(), device.pool),
        do_(c.dtype, o_shape(c), 0, 4, ops_.device(), device.pool),
        dqkv_(c.dtype, qkv_shape(c), 0, 5, ops_.device(), device.pool),
        workspace_(ops_.device().allocate(ops_.workspace_bytes(limits(c)))) {
    for (int64_t row = 0; row <= c.num_rows; ++row) {
      cu_seqlens_.push_back(static_cast<int32_t>(row * c.length));
    }
  }

  static int64_t size_bytes(const AttentionCase& c, const Ops& ops) {
    return 2 * DeviceTensor::size_bytes(c.dtype, qkv_shape(c), 0) +
           2 * DeviceTensor::size_bytes(c.dtype, o_shape(c), 0) +
           DeviceTensor::size_bytes(DType::kF32, lse_shape(c), 0) + ops.workspace_bytes(limits(c));
  }

  std::span<std::byte> workspace() const { return workspace_.span(); }
  void run() { case_.backward ? run_backward() : run_forward(); }

  // Backward uses o and lse of the forward, which is verified as well.
  Verification verify(const std::string& what) {
    Verification result;
    Verifier verifier(what, result);
    ops_.bind_workspace(workspace());
    o_.poison();
    lse_.poison();
    run_forward();
    o_.download();
    lse_.download();
    verify_attention(verifier, qkv_.host(), shape_, cu_seqlens_, o_.host(), lse_.host());
    if (!case_.backward) return result;
    dqkv_.poison();
    run_backward();
    dqkv_.download();
    verify_attention_backward(verifier, do_.host(), qkv_.host(), o_.host(), lse_.host(), shape_, cu_seqlens_,
                              dqkv_.host());
    return result;
  }

 private:
  static Shape qkv_shape(const AttentionCase& c) { return {c.num_tokens(), c.shape().qkv_width()}; }
  static Shape o_shape(const AttentionCase& c) { return {c.num_tokens(), c.num_heads * c.head_dim}; }
  static Shape lse_shape(const AttentionCase& c) { return {c.num_heads, c.num_tokens()}; }
  static OpsLimits limits(const AttentionCase& c) {
    OpsLimits limits = {};
    limits.max_tokens = c.num_tokens();
    limits.max_sequence_length = c.length;
    limits.hidden_size = c.num_heads * c.head_dim;
    limits.attention = c.shape();
    limits.dtype = c.dtype;
    limits.training = true;
    return limits;
  }

  void run_forward() {
    ops_.attention(qkv_.on_device(), shape_, cu_seqlens_, o_.on_device(), lse_.on_device());
  }
  void run_backward() {
    ops_.attention_backward(do_.on_device(), qkv_.on_device(), o_.on_device(), lse_.on_device(), shape_,
                            cu_seqlens_, dqkv_.on_device());
  }

  AttentionCase case_;
  Ops& ops_;
  AttentionShape shape_;
  std::vector<int32_t> cu_seqlens_;
  DeviceTensor qkv_, o_, lse_, do_, dqkv_;
  DeviceBuffer workspace_;
};

}  // namespace

BenchLine run_device_gemm_case(const GemmCase& c, const BenchDevice& device, const MeasureOptions& options) {
  const std::string what = gemm_case_text(c);
  check_device_memory(what, DeviceProduct::size_bytes(c, device.ops, options.cold_bytes),
                      device.ops.device());
  DeviceProduct product(c, device, options.cold_bytes);
  BenchLine line = gemm_line(c);
  line.verification = product.verify(fmt::format("{}, {}", what, device.ops.description()));
  measure_on_device([&] { product.run(); }, c.dtype, device, options, product.workspace(), &line);
  return line;
}

BenchLine run_device_attention_case(const AttentionCase& c, const BenchDevice& device,
                                    const MeasureOptions& options) {
  const std::string what = attention_case_text(c);
  check_device_memory(what, DeviceAttention::size_bytes(c, device.ops), device.ops.device());
  DeviceAttention attention(c, device);
  BenchLine line = attention_line(c);
  line.verification = attention.verify(fmt::format("{}, {}", what, device.ops.description()));
  measure_on_device([&] { attention.run(); }, c.dtype, device, options, attention.workspace(), &line);
  return line;
}

}  // namespace tessera
