#include "train/measure/training_peak.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "base/median.h"
#include "base/rng.h"
#include "kernels/dispatch.h"
#include "tensor/device.h"

namespace tessera {
namespace {

constexpr size_t kNumSlices = 5;
constexpr double kSliceSeconds = 0.004;
// Candidates far behind the best drop out after a few short looks at each: instruction sets are factors of 2
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

// Products of random matrices [n, n]: of zeros they would take less power and be faster.
TrainingPeak::TrainingPeak(Ops& ops, DType dtype) {
  constexpr int64_t kSize = 8192, kPiece = 1 << 16, kProducts = 4;
  Device& device = ops.device();
  const int64_t bytes = kSize * kSize * dtype_bytes(dtype);
  DeviceBuffer operands[3];
  for (DeviceBuffer& operand : operands) operand = device.allocate(bytes);
  const DeviceBuffer piece_memory = host_device().allocate(kPiece * dtype_bytes(dtype));
  const TensorView piece = piece_memory.view(dtype, {kPiece});
  const CounterRng rng(/*seed=*/1, /*stream=*/0);
  for (int64_t i = 0; i < kPiece; ++i) {
    const float value = rng.normal(static_cast<uint64_t>(i));
    dtype == DType::kBF16 ? void(piece.as<bf16>()[i] = to_bf16(value)) : void(piece.as<float>()[i] = value);
  }
  for (size_t i = 0; i < 2; ++i) {
    const TensorView flat = operands[i].view(dtype, {kSize * kSize});
    for (int64_t begin = 0; begin < kSize * kSize; begin += kPiece)
      copy(piece, flat.rows(begin, begin + kPiece));
  }
  OpsLimits limits = {};
  limits.max_tokens = kSize;
  limits.dtype = dtype;
  limits.linears = {{kSize, {kSize, kSize}}};
  const DeviceBuffer workspace = device.allocate(ops.workspace_bytes(limits));
  ops.bind_workspace(workspace.span());
  std::array<double, kNumSlices + 1> tflops = {};
  for (double& slice : tflops) {  // the first one loads the library's code
    device.synchronize();
    const Stopwatch time;
    for (int64_t i = 0; i < kProducts; ++i) {
      ops.linear(operands[0].view(dtype, {kSize, kSize}), operands[1].view(dtype, {kSize, kSize}), {},
                 operands[2].view(dtype, {kSize, kSize}));
    }
    device.synchronize();
    slice = 2.0 * kProducts * kSize * kSize * kSize / time.seconds() * 1e-12;
  }
  best_tflops_ = median({tflops.begin() + 1, tflops.end()});
  num_measurements_ = 1;
  of_device_ = {std::string(device.name()), dtype == DType::kBF16 ? "bf16 products, float32 sums" : "float32",
                best_tflops_};
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
