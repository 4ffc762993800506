#include "cli/terminal/recent_steps.h"

#include <algorithm>
#include <vector>

#include "base/median.h"

namespace tessera {
namespace {

constexpr size_t kMaxSteps = 21;
// Besides the first one: their median tolerates one more slow step.
constexpr int64_t kMinSteps = 3;

}  // namespace

void RecentSteps::add(const StepMetrics& metrics) {
  ++num_seen_;
  if (num_seen_ == 2 || steps_.size() == kMaxSteps) steps_.pop_front();
  steps_.push_back({metrics.step_time_s, metrics.tokens_per_second, metrics.tflops});
}

std::optional<double> RecentSteps::seconds_for(int64_t num_steps) const {
  if (num_steps > 0 && num_seen_ <= kMinSteps) return std::nullopt;
  return static_cast<double>(num_steps) * median(&Step::time_s);
}

double RecentSteps::median(double Step::*field) const {
  if (steps_.empty()) return 0;
  std::vector<double> values;
  for (const Step& step : steps_) values.push_back(step.*field);
  return tessera::median(std::move(values));
}

}  // namespace tessera
