#include "bench/measure.h"

#include "base/error.h"
#include "kernels/dispatch.h"

namespace tessera {

ComputePeakMeter make_peak_meter(ThreadPool& pool, DType dtype) {
  const std::vector<std::string> names = ComputePeakMeter::instruction_sets();
  if (names.empty()) {
    fail(ExitCode::kBadConfig, "the peak of this processor cannot be measured: it lacks AVX2");
  }
  for (const std::string& name : names) {
    const ComputePeakMeter meter(pool, name);
    const bool allowed = parse_isa(name).value_or(Isa::kAmxBf16) <= isa_limit();
    if (allowed && (dtype == DType::kBF16 || meter.arithmetic() == "float32")) return meter;
  }
  return {pool, names.back()};
}

}  // namespace tessera
