// What goes through the model at once. Without limits of memory the micro-batches of a step are better
// merged: a pass reads every weight and adds to every gradient once, which for a few hundred tokens takes as
// long as the products themselves (docs/performance.md). The loss is divided by the targets of the whole
// step, so merging changes nothing but the rounding.
#pragma once

#include <cstdint>
#include <string>

#include "data/batch_plan.h"
#include "model/model.h"

namespace tessera {

// How many micro-batches `auto` merges, at most max_merged: enough for 2048 tokens, as long as the
// activations without gradient checkpointing grow by no more than an eighth of weights, gradients and
// optimizer state. Depends on shapes alone, so that a run repeats bit by bit, with gradient checkpointing
// too. `micro_batch` are the limits of one.
int64_t micro_batches_per_pass(const Model& model, const ActivationLimits& micro_batch, int64_t max_merged);

// "rows 3, 5, 8, ..." of a step, cut to a line.
std::string name_rows(const RowLists& passes);

}  // namespace tessera
