// The loss of a model over a whole dataset.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "context/context_rank.h"
#include "data/dataset.h"
#include "model/trainable_model.h"
#include "report/evaluation_result.h"

namespace tessera {

// The batching of an evaluation.
struct EvalOptions {
  int64_t max_rows = 8;    // per_device_eval_batch_size
  int64_t max_tokens = 0;  // at once; a batch of more is computed in parts
  // Settings of Transformers' Trainer that decide how `loss` is averaged: ranks that each take a batch of
  // max_rows rows per round, whether a round that is not full is dropped, and whether the tokens of a round
  // are averaged over all ranks (average_tokens_across_devices).
  int64_t num_ranks = 1;
  bool drop_last = false;
  bool averages_tokens = true;
  float label_smoothing = 0;
  std::vector<int64_t> order = {};  // of the rows; empty = in file order
};

// Rows in order, in batches of at most max_rows rows and max_tokens tokens; a longer row forms its own batch.
// Batching does not change the result, since rows never see each other.
std::vector<std::vector<int64_t>> batches_of_rows(int64_t num_rows,
                                                  const std::function<int64_t(int64_t row)>& length_of,
                                                  int64_t max_rows, int64_t max_tokens);
// Limits for such batches.
ActivationLimits limits_of_rows(int64_t num_rows, int64_t max_row_length, int64_t max_rows,
                                int64_t max_tokens);

// Limits for an evaluation of this dataset.
ActivationLimits evaluation_limits(const Dataset& dataset, int64_t max_rows, int64_t max_tokens);

// Collective: the ranks, or teams of them that share rows, take the batches in turn; compute(batch) runs the
// model forward once. Asks `progress` after every round of batches; false if it has returned false, which it
// must do on every rank alike.
bool take_in_turn(int64_t num_batches, TrainableModel& model, Communicator& comm, const ContextRank* context,
                  const std::function<void(size_t batch)>& compute,
                  const std::function<bool(double fraction)>& progress);

// Rows that an evaluation computes at once, which belong to one batch of Transformers' Trainer.
struct EvalPart {
  int64_t batch;     // round * num_ranks + rank
  bool is_repeated;  // rows from the start that fill up the last round: they count only in `loss`
  std::vector<int64_t> rows;
};

// The parts of all batches, in order. Rows go to ranks as accelerate's BatchSamplerShard deals them.
std::vector<EvalPart> evaluation_parts(int64_t num_rows, const std::function<int64_t(int64_t row)>& length_of,
                                       const EvalOptions& options);

// Mean over rows of the losses of their batches, given the sums of token losses and the targets of each
// batch. As evaluation_loop() of Transformers 5.24: losses of a batch are repeated max_rows times, those past
// the last row are cut off, and batches without a target (whose loss is not a number) do not count.
double mean_over_rows(std::span<const double> loss_sums, std::span<const double> num_targets,
                      int64_t num_rows, const EvalOptions& options);

// Collective: the ranks take the parts in turn, and all get the overall result, bit-identical to that of a
// single rank: sums are taken in order. With `context` teams of ranks take them, and the losses of a part are
// added up in another order. The model's activation memory must be reserved for at least evaluation_limits().
// A non-finite loss is an Error(kNumerics) that names the first such rows. `progress` may be collective and
// must return the same on every rank; the evaluation stops when it returns false.
EvalResult evaluate(TrainableModel& model, const Dataset& dataset, const EvalOptions& options,
                    Communicator& comm, const std::function<bool(double fraction)>& progress = {},
                    ContextRank* context = nullptr);

}  // namespace tessera
