#include "forecast/simulation/failures.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"

namespace tessera {
namespace {

// Times between failures with mean 1.
const std::vector<double>& gaps() {
  static const std::vector<double> all = [] {
    constexpr uint64_t kNumFailures = 10'000;
    const CounterRng random(0, hash_name("failures"));
    std::vector<double> gaps;
    double sum = 0;
    for (uint64_t i = 0; i < kNumFailures; ++i) {
      gaps.push_back(-std::log1p(-static_cast<double>(random.uniform(i))));
      sum += gaps.back();
    }
    for (double& gap : gaps) gap *= kNumFailures / sum;
    return gaps;
  }();
  return all;
}

}  // namespace

UsefulTime useful_time(const FailureInputs& inputs, int num_nodes, double step_s, int64_t checkpoint_steps) {
  UsefulTime result;
  result.checkpoint_steps = checkpoint_steps;
  result.failure_s = inputs.node_mtbf_s / num_nodes;
  const double steps = static_cast<double>(checkpoint_steps);
  const double cycle_s = std::max(steps * step_s + inputs.checkpoint_stall_s, inputs.checkpoint_write_s);
  const double down_s = inputs.detection_s + inputs.restart_s;
  double useful_steps = 0, repeated_steps = 0, wall_s = 0;
  for (const double gap : gaps()) {
    const double gap_s = gap * result.failure_s;
    wall_s += gap_s;
    const double up_s = gap_s - down_s;
    if (up_s <= 0) continue;  // failed again before it was up
    const double cycles = std::floor(up_s / cycle_s);
    const double finished = cycles * steps + std::min(steps, std::floor((up_s - cycles * cycle_s) / step_s));
    // The checkpoint of a cycle is begun at its end.
    const double complete = std::max(0.0, std::floor((up_s - inputs.checkpoint_write_s) / cycle_s));
    useful_steps += std::min(complete, cycles) * steps;
    repeated_steps += finished - std::min(complete, cycles) * steps;
  }
  result.useful_share = useful_steps * step_s / wall_s;
  result.repeated_steps = repeated_steps / static_cast<double>(gaps().size());
  return result;
}

UsefulTime best_useful_time(const FailureInputs& inputs, int num_nodes, double step_s) {
  constexpr double kFactor = 1.05;
  // No longer than the run usually lasts.
  const double most = std::max(1.0, inputs.node_mtbf_s / num_nodes / step_s);
  UsefulTime best;
  best.useful_share = -1;
  int64_t last = 0;
  for (double steps = 1; steps <= most; steps *= kFactor) {
    const int64_t rounded = std::llround(steps);
    if (rounded == last) continue;
    last = rounded;
    const UsefulTime each = useful_time(inputs, num_nodes, step_s, rounded);
    if (each.useful_share > best.useful_share) best = each;
  }
  return best;
}

}  // namespace tessera
