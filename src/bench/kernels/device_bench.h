// Benchmarks of single operations on a device with memory of its own, in device time.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/function_ref.h"
#include "bench/measure.h"
#include "ops/device_peak.h"

namespace tessera {

// The device that a line is measured on. The pool fills operands.
struct BenchDevice {
  Ops& ops;
  DevicePeakMeter& peak;  // of the type of the operands
  ThreadPool& pool;
};

// The elements of a tensor as the host reads and writes them: its own, or a copy of a device's.
class HostTensor {
 public:
  explicit HostTensor(TensorView of);
  TensorView view() const { return view_; }
  void write_back() const;

 private:
  TensorView of_, view_;
  PageBuffer memory_;
};

// Error(kBadConfig) if the device has not so much memory free.
void check_device_memory(const std::string& what, int64_t needed_bytes, const Device& device);

// Measures run() in turn with the peak; fills in all of the line that is the same for every operation.
void measure_on_device(FunctionRef<void()> run, std::span<std::byte> workspace, DType dtype,
                       const BenchDevice& device, const MeasureOptions& options, BenchLine* line);

}  // namespace tessera
