// The update of a step during its backward pass: a rank updates its part of every group as soon as the sums
// of its gradients are complete, and holds no others. Ranks learn of each other's new weights at the end of
// the pass.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "optim/optimizer_state.h"
#include "shard/update/update_rule.h"

namespace tessera {

class BackwardUpdate final : public UpdateRule {
 public:
  // The first parameter of this rank's part of a group with a gradient that is not finite; "": none.
  using FindNotFinite = std::function<std::string(int64_t group)>;

  // `product_squares`: where the model's products add up the squares of the pass's gradients, or null: they
  // are taken from the sums.
  BackwardUpdate(GroupUpdate group_update, const OptimizerState& state, const double* product_squares,
                 FindNotFinite find_not_finite);

  // The last pass of the next step makes this update, calling `before_change` (if set) before each group. A
  // max_group_norm, which needs a single rank, scales down every group's gradients to it, besides
  // step.gradient_scale; 0 = none. Once a gradient is not finite, the remaining groups are not updated.
  void begin(const OptimizerStep& step, double max_group_norm, ChangeHook before_change);
  // The pass was abandoned; nothing changes.
  void cancel() { step_.reset(); }
  // Whether the last pass has changed anything, and whether it is still going on: with several ranks from its
  // beginning, because this rank does not know what others have updated by then.
  bool has_begun() const { return has_begun_; }
  bool is_under_way() const { return is_single() ? has_begun_ && step_.has_value() : updates_; }
  // Seconds the last update took.
  double seconds() const { return seconds_; }

  // Whether this pass updates.
  bool updates() const { return updates_; }
  // The sum of squares of the gradients of this pass.
  double squares() const;
  const std::string& not_finite() const { return not_finite_; }

  void begin_pass(bool is_last) override;
  bool end_pass() override;
  void gradients_complete(int64_t group) override;
  void update(const OptimizerStep& step, const ChangeHook& before_change) override;

 private:
  bool is_single() const { return group_update_.plan.world_size() == 1; }
  // Returns a group's sum; the sums of its ranges go into range_squares_.
  double add_squares(int64_t group);

  GroupUpdate group_update_;
  const OptimizerState* state_;
  const double* product_squares_;
  FindNotFinite find_not_finite_;

  // The update that the next or current pass makes.
  std::optional<OptimizerStep> step_;
  double max_group_norm_ = 0;
  ChangeHook before_change_;
  bool updates_ = false;
  bool has_begun_ = false;
  double seconds_ = 0;

  std::vector<double> range_squares_;  // of the gradients of this pass, by range of the state
  double squares_ = 0;                 // of all groups so far, as they came
  std::string not_finite_;             // the first parameter of this pass whose gradient is not finite
};

}  // namespace tessera
