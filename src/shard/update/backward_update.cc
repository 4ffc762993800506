#include "shard/update/backward_update.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "optim/clip.h"

namespace tessera {

BackwardUpdate::BackwardUpdate(GroupUpdate group_update, const OptimizerState& state,
                               const double* product_squares, FindNotFinite find_not_finite)
    : group_update_(group_update),
      state_(&state),
      product_squares_(product_squares),
      find_not_finite_(std::move(find_not_finite)),
      range_squares_(static_cast<size_t>(state.num_ranges())) {}

void BackwardUpdate::begin(const OptimizerStep& step, double max_group_norm, ChangeHook before_change) {
  TESSERA_CHECK(max_group_norm == 0 || is_single(), "clipping of groups needs one rank");
  step_ = step;
  max_group_norm_ = max_group_norm;
  before_change_ = std::move(before_change);
  seconds_ = 0;
}

void BackwardUpdate::begin_pass(bool is_last) {
  updates_ = is_last && step_.has_value();
  has_begun_ = false;
  squares_ = 0;
  std::ranges::fill(range_squares_, 0.0);
  not_finite_.clear();
}

double BackwardUpdate::add_squares(int64_t group) {
  const double before = squares_;
  if (product_squares_ != nullptr) {
    squares_ = *product_squares_;
    return squares_ - before;
  }
  for (int64_t range = group_update_.first_range[static_cast<size_t>(group)];
       range < group_update_.first_range[static_cast<size_t>(group + 1)]; ++range) {
    squares_ += range_squares_[static_cast<size_t>(range)] = state_->gradient_squares(range);
  }
  return squares_ - before;
}

double BackwardUpdate::squares() const {
  if (is_single()) return squares_;
  const double norm = std::sqrt(std::accumulate(range_squares_.begin(), range_squares_.end(), 0.0));
  return norm * norm;
}

void BackwardUpdate::gradients_complete(int64_t group) {
  const double group_squares = add_squares(group);
  if (!std::isfinite(squares_) && not_finite_.empty()) {
    not_finite_ = find_not_finite_(group);
    if (not_finite_.empty()) not_finite_ = "a group";
  }
  // Groups after a gradient that is not finite are left alone.
  if (!updates_ || !step_ || !not_finite_.empty()) return;
  const Stopwatch time;
  has_begun_ = true;
  OptimizerStep step = *step_;
  step.gradient_scale *= clip_factor(std::sqrt(group_squares), max_group_norm_);
  const int64_t num_groups = group_update_.num_groups();
  group_update_.run(group, (group + num_groups - 1) % num_groups, step, before_change_);
  seconds_ += time.seconds();
}

bool BackwardUpdate::end_pass() {
  if (!std::exchange(updates_, false)) return false;
  for (int64_t group = 0; group < group_update_.num_groups(); ++group) group_update_.weights.updated(group);
  step_.reset();
  return true;
}

void BackwardUpdate::update(const OptimizerStep& /*step*/, const ChangeHook& /*before_change*/) {
  TESSERA_CHECK(false, "an update after the gradients are gone");
}

}  // namespace tessera
