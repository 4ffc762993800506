#include "bench/measure.h"

#include "base/error.h"
#include "base/stopwatch.h"
#include "kernels/dispatch.h"

namespace tessera {
std::vector<std::vector<double>> measure_in_turn(std::span<const Participant> participants,
                                                 const MeasureOptions& options) {
  for (const Participant& participant : participants) participant();
  std::vector<std::vector<double>> speeds(participants.size());
  const Stopwatch stopwatch;
  for (int64_t round = 0; round < options.min_rounds || stopwatch.seconds() < options.seconds; ++round) {
    for (size_t i = 0; i < participants.size(); ++i) speeds[i].push_back(participants[i]());
  }
  return speeds;
}

double seconds_of(FunctionRef<void()> body) {
  const Stopwatch stopwatch;
  body();
  return stopwatch.seconds();
}

double speed_of(FunctionRef<void()> body, double amount, double turn_seconds) {
  const Stopwatch stopwatch;
  double elapsed = 0;
  double calls = 0;
  do {
    body();
    ++calls;
    elapsed = stopwatch.seconds();
  } while (elapsed < turn_seconds);
  return calls * amount / elapsed;
}

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
