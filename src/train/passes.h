// What goes through the model at once. Without limits of memory the micro-batches of a step are better
// merged: a pass reads every weight and adds to every gradient once, which for a few hundred tokens takes as
// long as the products themselves (docs/performance.md). The loss is divided by the targets of the whole
// step, so merging changes nothing but the rounding.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "data/batch_plan.h"
#include "model/model.h"

namespace tessera {

// How many micro-batches `auto` merges, at most max_merged: enough for 2048 tokens, as long as the
// activations without gradient checkpointing grow by no more than an eighth of weights, gradients and
// optimizer state. Depends on shapes alone, so that a run repeats bit by bit, with gradient checkpointing
// too. `micro_batch` are the limits of one.
int64_t micro_batches_per_pass(const Model& model, const ActivationLimits& micro_batch, int64_t max_merged);

// The steps of a run, for largest_pass().
struct StepSurvey {
  int64_t num_steps = 0;      // that differ: what comes behind them repeats them
  int64_t step_rows = 0;      // of a step, at most
  int64_t max_pass_rows = 0;  // of a pass, at most
  int64_t num_rows = 0;       // of the dataset
  int64_t max_row_length = 0;
  std::function<int64_t(int64_t row)> row_length;
  std::function<int64_t(int64_t step)> largest_pass_of;  // in tokens
  bool asks_every_step = false;  // largest_pass_of() looks for faults, too: a maximum is no reason to stop
};

// No pass of the run has more tokens, and one has as many if that can be told from 1,000,000 rows of steps:
// the steps are asked one by one until a pass has max_pass_rows rows of max_row_length (packed rows: the
// first). Of a longer run it is the sum of the longest max_pass_rows rows. Cost: O(1,000,000 + num_rows),
// whatever the number of steps.
int64_t largest_pass(const StepSurvey& survey);

// "rows 3, 5, 8, ..." of a step, cut to a line.
std::string name_rows(const RowLists& passes);

}  // namespace tessera
