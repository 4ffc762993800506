// Detects steps whose loss or gradient norm stands out from those before, as OLMo 2 does before it skips the
// update (OLMo et al., 2 OLMo 2 Furious, 2024; SkipStepOptimizer of OLMo-core).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/progress.h"

namespace tessera {

struct LossSpikeOptions {
  int64_t window = 128;  // earlier steps that a step is compared with
  double sigmas = 6;     // standard deviations above their mean that make a spike
};

struct LossSpike {
  std::string what;  // "loss" or "gradient norm"
  double value = 0;
  double mean = 0;  // of the window
  double deviation = 0;
};

class LossSpikeDetector {
 public:
  explicit LossSpikeDetector(const LossSpikeOptions& options) : options_(options) { restore({}); }

  // Both values must be finite. Spikes enter the window too, so that a new level does not count as a spike
  // forever. Nothing counts as a spike before half the window has been seen.
  std::optional<LossSpike> observe(double loss, double grad_norm);

  const LossSpikeHistory& history() const { return history_; }
  void restore(LossSpikeHistory history);

 private:
  std::optional<LossSpike> judge(const char* what, const std::vector<double>& before, double value) const;

  LossSpikeOptions options_;
  LossSpikeHistory history_;
};

}  // namespace tessera
