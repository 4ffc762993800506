#include "bench/kernels/device_bench.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr int64_t kProductsOfATurn = 2;  // an H100 takes 3 ms

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

}  // namespace

HostTensor::HostTensor(TensorView of) : of_(of), view_(of) {
  if (of.is_on_host()) return;
  memory_ = PageBuffer(of.size_bytes());
  view_ = TensorView(memory_.data(), of.dtype(), of.shape());
  copy(of, view_);
}

void HostTensor::write_back() const {
  if (!of_.is_on_host()) copy(view_, of_);
}

void check_device_memory(const std::string& what, int64_t needed_bytes, const Device& device) {
  const std::optional<Device::OwnMemory> memory = device.own_memory();
  TESSERA_CHECK(memory.has_value(), "{}", device.name());
  if (needed_bytes <= memory->free_bytes) return;
  fail(ExitCode::kBadConfig, "{}: needs {} of memory, {} are free on {}; use smaller shapes", what,
       format_bytes(needed_bytes), format_bytes(memory->free_bytes), device.name());
}

void measure_on_device(FunctionRef<void()> run, std::span<std::byte> workspace, DType dtype,
                       const BenchDevice& device, const MeasureOptions& options, BenchLine* line) {
  const std::unique_ptr<DeviceClock> clock = device.ops.device().make_clock();
  line->dtype = dtype_name(dtype);
  line->unit = "TFLOPS";
  line->peak_name = fmt::format("square products, {}", device.peak.arithmetic());
  line->implementation = device.ops.description();
  const Participant participants[] = {
      [&] {
        device.ops.bind_workspace(workspace);
        return device_speed_of(run, line->amount, *clock, options.turn_seconds);
      },
      [&] { return device.peak.measure(kProductsOfATurn); },
  };
  fill_statistics(measure_in_turn(participants, options), line);
}

}  // namespace tessera
