// When the optimizer updates a group of parameters.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "optim/state_place.h"
#include "shard/layout/change_hook.h"
#include "shard/layout/shard_plan.h"
#include "shard/weights/weight_place.h"

namespace tessera {

// The update of this rank's part of one group, which all rules make.
struct GroupUpdate {
  const ShardPlan& plan;
  int rank;
  const std::vector<int64_t>& first_range;  // of the state, by group, plus the end
  StatePlace& state;
  WeightPlace& weights;

  int64_t num_groups() const { return plan.num_groups(); }
  // `next` is the group to be updated after it.
  void run(int64_t group, int64_t next, const OptimizerStep& step, const ChangeHook& before_change) const;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  virtual void begin_pass(bool /*is_last*/) {}
  // Whether the pass has changed weights.
  virtual bool end_pass() { return false; }
  // Before the model uses the weights of a group.
  virtual void before_open(int64_t /*group*/) {}
  // The sums of this rank's part of a group's gradients are complete.
  virtual void gradients_complete(int64_t /*group*/) {}
  // Collective: one update, group by group, calling `before_change` (if set) before each.
  virtual void update(const OptimizerStep& step, const ChangeHook& before_change) = 0;
  // Completes an update that overlaps the passes after it, and is under way.
  virtual void finish() {}
  // Whether one is.
  virtual bool is_pending() const { return false; }
  // Seconds that such updates took since the last call, beyond those of update().
  virtual double take_seconds() { return 0; }
};

class UpdateAfterStep final : public UpdateRule {
 public:
  explicit UpdateAfterStep(GroupUpdate group_update) : group_update_(group_update) {}

  void update(const OptimizerStep& step, const ChangeHook& before_change) override;

 private:
  GroupUpdate group_update_;
};

}  // namespace tessera
