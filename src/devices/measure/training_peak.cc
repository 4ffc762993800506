#include "devices/measure/training_peak.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "base/median.h"
#include "kernels/dispatch.h"
#include "ops/device_peak.h"

namespace tessera {
namespace {

constexpr size_t kNumSlices = 5;
constexpr double kSliceSeconds = 0.004;
// Candidates far below the best drop out after a few short looks at each: instruction sets are factors of 2
// to 16 apart. The best look counts, so that one disturbed by other programs does no harm.
constexpr size_t kNumLooks = 3;
constexpr double kLookSeconds = 0.0005;
constexpr double kNearTheBest = 0.4;

struct PeakCandidate {
  ComputePeakMeter meter;
  std::array<double, kNumSlices> tflops = {};

  double median() const { return tessera::median({tflops.begin(), tflops.end()}); }
};

bool is_allowed(const std::string& instruction_set) {
  const std::optional<Isa> isa = parse_isa(instruction_set);
  TESSERA_CHECK(isa.has_value(), "instruction set '{}'", instruction_set);
  return isa_refusal(*isa).empty();
}

void keep_the_fastest(std::vector<PeakCandidate>* candidates) {
  double best = 0;
  for (size_t look = 0; look < kNumLooks; ++look) {
    for (PeakCandidate& candidate : *candidates) {
      candidate.tflops[0] = std::max(candidate.tflops[0], candidate.meter.measure(kLookSeconds));
      best = std::max(best, candidate.tflops[0]);
    }
  }
  std::erase_if(*candidates, [&](const PeakCandidate& c) { return c.tflops[0] < kNearTheBest * best; });
}

}  // namespace

TrainingPeak::TrainingPeak(ThreadPool& pool, DType dtype) {
  std::vector<PeakCandidate> candidates;
  for (const std::string& name : ComputePeakMeter::instruction_sets()) {
    ComputePeakMeter meter(pool, name);
    const bool fits = dtype == DType::kBF16 || meter.arithmetic() == "float32";
    if (fits && is_allowed(name)) candidates.push_back({meter});
  }
  keep_the_fastest(&candidates);
  for (size_t slice = 0; slice < kNumSlices; ++slice) {
    for (PeakCandidate& candidate : candidates)
      candidate.tflops[slice] = candidate.meter.measure(kSliceSeconds);
  }
  for (PeakCandidate& candidate : candidates) {
    meters_.push_back(candidate.meter);
    take(meters_.size() - 1, candidate.median());
  }
  num_measurements_ = 1;
  since_last_ = Stopwatch();
}

TrainingPeak::TrainingPeak(Ops& ops, DType dtype) {
  constexpr int64_t kProducts = 4;
  DevicePeakMeter meter(ops, dtype);
  meter.measure(kProducts);  // loads the library's code
  std::vector<double> tflops(kNumSlices);
  for (double& slice : tflops) slice = meter.measure(kProducts);
  best_tflops_ = median(tflops);
  num_measurements_ = 1;
  of_device_ = {std::string(ops.device().name()), meter.arithmetic(), best_tflops_};
}

void TrainingPeak::take(size_t index, double tflops) {
  if (tflops <= best_tflops_) return;
  best_ = index;
  best_tflops_ = tflops;
}

void TrainingPeak::measure_again() {
  TESSERA_CHECK(!meters_.empty(), "no instruction set to measure");
  constexpr double kLongestIntervalSeconds = 20;
  const size_t index = static_cast<size_t>(num_measurements_) % meters_.size();
  take(index, meters_[index].measure(kSliceSeconds));
  ++num_measurements_;
  interval_s_ = std::clamp(2 * interval_s_, 1.0, kLongestIntervalSeconds);
  since_last_ = Stopwatch();
}

std::optional<ComputePeak> TrainingPeak::best() const {
  if (of_device_ || meters_.empty()) return of_device_;
  const ComputePeakMeter& meter = meters_[best_];
  return ComputePeak{std::string(meter.instruction_set()), std::string(meter.arithmetic()), best_tflops_};
}

}  // namespace tessera
