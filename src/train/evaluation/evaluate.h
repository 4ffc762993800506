// The loss of a model over a whole dataset.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "context/context_rank.h"
#include "data/dataset.h"
#include "model/trainable_model.h"

namespace tessera {

struct EvalResult {
  double loss = 0;        // sum of token losses / num_targets
  double perplexity = 0;  // exp(loss), infinite if that overflows, as in Hugging Face's example scripts
  int64_t num_rows = 0;
  int64_t num_tokens = 0;
  int64_t num_targets = 0;
  int64_t num_batches = 0;
  double runtime_s = 0;
  bool stopped = false;  // by the callback: the other fields are meaningless

  double tokens_per_second() const { return static_cast<double>(num_tokens) / runtime_s; }
};

// Rows in order, in batches of at most max_rows rows and max_tokens tokens; a longer row forms its own batch.
// Batching does not change the result, since rows never see each other.
std::vector<std::vector<int64_t>> batches_of_rows(int64_t num_rows,
                                                  const std::function<int64_t(int64_t row)>& length_of,
                                                  int64_t max_rows, int64_t max_tokens);
// Limits for such batches.
ActivationLimits limits_of_rows(int64_t num_rows, int64_t max_row_length, int64_t max_rows,
                                int64_t max_tokens);

// The same for a dataset.
std::vector<std::vector<int64_t>> evaluation_batches(const Dataset& dataset, int64_t max_rows,
                                                     int64_t max_tokens);

// Limits for evaluation_batches(dataset, max_rows, max_tokens).
ActivationLimits evaluation_limits(const Dataset& dataset, int64_t max_rows, int64_t max_tokens);

// Collective: the ranks, or teams of them that share rows, take the batches in turn; compute(batch) runs the
// model forward once. Asks `progress` after every round of batches; false if it has returned false, which it
// must do on every rank alike.
bool take_in_turn(int64_t num_batches, TrainableModel& model, Communicator& comm, const ContextRank* context,
                  const std::function<void(size_t batch)>& compute,
                  const std::function<bool(double fraction)>& progress);

// The model's activation memory must be reserved for at least evaluation_limits(). No label smoothing. A
// non-finite loss is an Error(kNumerics) that names the first such rows. `progress` is called after every
// batch; the evaluation stops when it returns false.
EvalResult evaluate(TrainableModel& model, const Dataset& dataset, int64_t max_rows, int64_t max_tokens,
                    const std::function<bool(double fraction)>& progress = {});

// Collective: the ranks take the batches in turn, and all get the overall result, bit-identical to that of a
// single rank: sums are taken in batch order. With `context` teams of ranks take them, and the losses of a
// batch are added up in another order. `progress` may be collective and must return the same on every rank.
EvalResult evaluate_together(TrainableModel& model, const Dataset& dataset, int64_t max_rows,
                             int64_t max_tokens, Communicator& comm,
                             const std::function<bool(double fraction)>& progress = {},
                             ContextRank* context = nullptr);

}  // namespace tessera
