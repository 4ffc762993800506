// The rows that this job reads in each step, as the passes of all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "data/rows/batch_plan.h"
#include "data/rows/deal_rows.h"

namespace tessera {

class StepRows {
 public:
  // `dataset` must outlive this. The ranks form num_teams teams of consecutive ranks, each of which computes
  // gradients of its own: the rows of a rank's micro-batches stay with its team.
  StepRows(const Dataset& dataset, const BatchPlanOptions& options, int64_t world_size,
           int64_t num_teams = 1);

  const BatchPlan& batches() const { return batches_; }
  // From now on this many micro-batches of a rank are one pass.
  void set_micro_batches_per_pass(int64_t count);

  // Waits until the rows of a step are there, if they are streamed, and releases those of earlier steps.
  // False once gives_up(), which is asked about every 20 ms.
  bool wait_for_rows(int64_t step, const std::function<bool()>& gives_up) const;
  // Row numbers of step `step` (from 0): pass p of rank r is list p * world_size + r. Valid until the next
  // call.
  const RowLists& passes_of_step(int64_t step);
  // Target tokens of `passes`, the rows of step `step`, which may have none.
  int64_t count_targets(int64_t step, const RowLists& passes) const;
  // Targets of one team, which may have none.
  int64_t count_targets_of_team(int64_t step, const RowLists& passes, int64_t team) const;
  // Tokens of the largest pass in the first num_steps steps.
  int64_t largest_pass(int64_t num_steps);

 private:
  Dealing dealing() const { return options_.whole_micro_batches ? Dealing::kInOrder : Dealing::kByCost; }
  int64_t team_size() const { return world_size_ / num_teams_; }
  int64_t count_targets_of(int64_t step, std::span<const int64_t> rows) const;
  // Fills passes_ from micro_batches_.
  void deal_to_teams();
  void select_team(int64_t team);

  const Dataset& dataset_;
  BatchPlanOptions options_;
  BatchPlan batches_;
  int64_t world_size_;
  int64_t num_teams_;
  int64_t micro_batches_per_pass_ = 1;
  RowDealer dealer_;
  RowLists micro_batches_;
  RowLists passes_;
  RowLists of_team_;                   // its micro-batches
  std::vector<RowLists> team_passes_;  // pass p of its rank r is list p * team_size() + r
};

}  // namespace tessera
