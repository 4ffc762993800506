#include "cli/terminal/recent_steps.h"

#include <algorithm>
#include <vector>

#include "base/median.h"

namespace tessera {
namespace {

constexpr size_t kMaxSteps = 21;

}  // namespace

void RecentSteps::add(double tokens_per_second, double tflops) {
  ++num_seen_;
  if (num_seen_ == 2 || steps_.size() == kMaxSteps) steps_.pop_front();
  steps_.push_back({tokens_per_second, tflops});
}

double RecentSteps::median(double Step::*field) const {
  if (steps_.empty()) return 0;
  std::vector<double> values;
  for (const Step& step : steps_) values.push_back(step.*field);
  return tessera::median(std::move(values));
}

}  // namespace tessera
