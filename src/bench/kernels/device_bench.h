// Products and attention as the operations of a device with memory of its own carry them out, in device time.
#pragma once

#include "bench/kernels/attention_bench.h"
#include "bench/kernels/gemm_bench.h"
#include "ops/device_peak.h"

namespace tessera {

// What a line is measured on. The pool fills operands.
struct BenchDevice {
  Ops& ops;
  DevicePeakMeter& peak;  // of the type of the operands
  ThreadPool& pool;
};

// As run_gemm_case() and run_attention_case(): verified on the same samples, then measured in turn with the
// peak, weights cold. Error(kBadConfig) if the operands do not fit in the device's memory.
BenchLine run_device_gemm_case(const GemmCase& c, const BenchDevice& device, const MeasureOptions& options);
BenchLine run_device_attention_case(const AttentionCase& c, const BenchDevice& device,
                                    const MeasureOptions& options);

}  // namespace tessera
