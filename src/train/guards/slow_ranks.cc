#include "train/guards/slow_ranks.h"

#include <algorithm>

#include "base/error.h"

namespace tessera {
namespace {

// The lower of the two middle values for an even count: of two ranks the slow one then stands out. Reorders
// `values`.
double median_of(std::vector<double>& values) {
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

SlowRankDetector::SlowRankDetector(int world_size, const SlowRankOptions& options)
    : options_(options),
      world_size_(world_size),
      steps_(static_cast<size_t>(options.window * world_size)),
      sums_(static_cast<size_t>(world_size)),
      times_median_(static_cast<size_t>(world_size), 1.0),
      is_slow_(static_cast<size_t>(world_size), false) {}

// Recomputes the sums from the window: running sums would accumulate rounding errors of past values.
void SlowRankDetector::compare() {
  std::fill(sums_.begin(), sums_.end(), Sums{});
  for (size_t i = 0; i < steps_.size(); ++i) {
    Sums& sum = sums_[i % static_cast<size_t>(world_size_)];
    sum.work += steps_[i].work;
    sum.compute_s += steps_[i].compute_s;
  }
  seconds_.clear();
  paces_.clear();
  for (const Sums& sum : sums_) {
    seconds_.push_back(sum.compute_s);
    if (sum.work > 0) paces_.push_back(sum.compute_s / sum.work);
  }
  std::fill(times_median_.begin(), times_median_.end(), 1.0);
  if (num_steps_ < options_.least_steps || paces_.empty() || median_of(seconds_) < options_.least_s) return;
  const double middle = median_of(paces_);
  for (size_t rank = 0; rank < sums_.size(); ++rank) {
    if (sums_[rank].work > 0) times_median_[rank] = sums_[rank].compute_s / sums_[rank].work / middle;
  }
}

std::vector<SlowRankChange> SlowRankDetector::observe(std::span<const double> work,
                                                      std::span<const double> compute_s) {
  TESSERA_CHECK(std::ssize(work) == world_size_ && std::ssize(compute_s) == world_size_,
                "{} and {} numbers of {} ranks", work.size(), compute_s.size(), world_size_);
  const int64_t begin = num_steps_ % options_.window * world_size_;
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    const auto r = static_cast<size_t>(rank);
    steps_[static_cast<size_t>(begin + rank)] = {work[r], compute_s[r]};
  }
  ++num_steps_;
  compare();
  std::vector<SlowRankChange> changes;
  for (size_t rank = 0; rank < is_slow_.size(); ++rank) {
    const double times = times_median_[rank];
    const bool is_slow = times >= (is_slow_[rank] ? options_.recovered : options_.slow);
    if (is_slow == is_slow_[rank]) continue;
    is_slow_[rank] = is_slow;
    changes.push_back({static_cast<int>(rank), is_slow, times});
  }
  return changes;
}

}  // namespace tessera
