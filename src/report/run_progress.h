// Where a run is and how it goes, for those who watch it: its own terminal, and `tessera watch`.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/observer.h"

namespace tessera {

// Which way the loss goes.
enum class Trend { kUnknown, kFalling, kLevel, kRising };

struct RunProgress {
  int64_t step = 0;
  int64_t max_steps = 0;  // 0: not known
  double loss = 0;
  // How the mean loss of the newer half of the last steps compares with that of the older half: kLevel if the
  // change may well be noise, being less than two standard errors. Not known before there are enough steps.
  Trend trend = Trend::kUnknown;
  std::optional<double> loss_change = {};
  double learning_rate = 0;
  double tokens_per_second = 0;
  double tflops = 0;
  std::optional<double> mfu = {};    // nullopt: no peak was measured
  std::optional<double> eta_s = {};  // nullopt: not known yet
  std::string activity = {};         // "eval 40%", "last step 10:00 ago"; "" = steps
};

// Follows a run step by step. Speeds are medians over the last steps; the first step of a process, which
// touches memory and fills caches, is dropped once there are others: it may take several times as long.
class ProgressMeter {
 public:
  void set_max_steps(int64_t max_steps) { progress_.max_steps = max_steps; }
  void add(const StepMetrics& step);
  const RunProgress& progress() const { return progress_; }

 private:
  void add_loss(double loss);

  RunProgress progress_;
  std::deque<std::pair<double, double>> speeds_;  // tokens per second, TFLOPS
  int64_t num_steps_ = 0;
  std::vector<double> losses_;
  std::optional<double> peak_tflops_;
};

}  // namespace tessera
