// Plans passes: what goes through the model at once. If memory allows, merging the micro-batches of a step is
// faster: a pass reads every weight and adds to every gradient once, which for a few hundred tokens takes as
// long as the products themselves (docs/performance.md). The loss is divided by the targets of the whole
// step, so merging changes only the rounding.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "data/rows/batch_plan.h"
#include "model/trainable_model.h"
#include "optim/state_tensor.h"

namespace tessera {

// The number of micro-batches that `auto` merges, at most max_merged: enough for 2048 tokens, provided that
// the activations without gradient checkpointing grow by no more than an eighth of weights, gradients and
// optimizer state. Depends on shapes alone, so that runs are bit-reproducible, with or without gradient
// checkpointing. `micro_batch` has the limits of a single one.
int64_t micro_batches_per_pass(const TrainableModel& model, const ActivationLimits& micro_batch,
                               int64_t max_merged, StateTensors state_tensors);

// The steps of a run, for largest_pass().
struct StepSurvey {
  int64_t num_steps = 0;      // distinct steps: later ones repeat them
  int64_t step_rows = 0;      // maximum per step
  int64_t max_pass_rows = 0;  // maximum per pass
  int64_t num_rows = 0;       // of the dataset
  int64_t max_row_length = 0;
  std::function<int64_t(int64_t row)> row_length;
  std::function<int64_t(int64_t step)> largest_pass_of;  // in tokens
};

// An upper bound for the tokens of any pass of the run, exact if 1,000,000 rows of steps suffice: asks the
// steps one by one until a pass has max_pass_rows rows of max_row_length (with packed rows, the first does).
// For a longer run it is the sum of the longest max_pass_rows rows. Cost: O(1,000,000 + num_rows), regardless
// of the number of steps.
int64_t largest_pass(const StepSurvey& survey);

// "rows 3, 5, 8, ..." of a step, cut to one line.
std::string name_rows(const RowLists& passes);

}  // namespace tessera
