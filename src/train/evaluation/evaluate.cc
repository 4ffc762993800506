#include "train/evaluation/evaluate.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/stopwatch.h"
#include "data/rows/batch_plan.h"

namespace tessera {

std::vector<std::vector<int64_t>> batches_of_rows(int64_t num_rows,
                                                  const std::function<int64_t(int64_t row)>& length_of,
                                                  int64_t max_rows, int64_t max_tokens) {
  std::vector<std::vector<int64_t>> batches;
  int64_t num_tokens = 0;  // of the last batch
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t length = length_of(row);
    const bool fits = !batches.empty() && static_cast<int64_t>(batches.back().size()) < max_rows &&
                      num_tokens + length <= max_tokens;
    if (!fits) {
      batches.emplace_back();
      num_tokens = 0;
    }
    batches.back().push_back(row);
    num_tokens += length;
  }
  return batches;
}

ActivationLimits limits_of_rows(int64_t num_rows, int64_t max_row_length, int64_t max_rows,
                                int64_t max_tokens) {
  ActivationLimits limits;
  limits.training = false;
  limits.max_sequence_length = max_row_length;
  limits.max_tokens =
      std::max(max_row_length, std::min(max_tokens, std::min(max_rows, num_rows) * max_row_length));
  return limits;
}

std::vector<std::vector<int64_t>> evaluation_batches(const Dataset& dataset, int64_t max_rows,
                                                     int64_t max_tokens) {
  return batches_of_rows(
      dataset.num_rows(), [&dataset](int64_t row) { return dataset.row_length(row); }, max_rows, max_tokens);
}

ActivationLimits evaluation_limits(const Dataset& dataset, int64_t max_rows, int64_t max_tokens) {
  return limits_of_rows(dataset.num_rows(), dataset.max_row_length(), max_rows, max_tokens);
}

bool take_in_turn(int64_t num_batches, TrainableModel& model, Communicator& comm, const ContextRank* context,
                  const std::function<void(size_t batch)>& compute,
                  const std::function<bool(double fraction)>& progress) {
  const int64_t team_size = size_of_team(context);
  const int64_t num_teams = comm.world().world_size / team_size;
  for (int64_t first = 0; first < num_batches; first += num_teams) {
    const int64_t own = first + comm.world().rank / team_size;
    if (own < num_batches) {
      compute(static_cast<size_t>(own));
    } else {
      model.take_part_in_forward();
    }
    const int64_t num_done = std::min(first + num_teams, num_batches);
    if (progress && !progress(static_cast<double>(num_done) / static_cast<double>(num_batches))) return false;
  }
  return true;
}

namespace {

void add_batch(TrainableModel& model, const Dataset& dataset, const std::vector<int64_t>& rows,
               PackedBatch* batch, ContextRank* context, double* loss_sum, EvalResult* result) {
  make_packed_batch(dataset, rows, batch);
  const LossSums sums = model.forward_loss(take_slice(context, *batch));
  if (!std::isfinite(sums.loss_sum)) {
    fail(ExitCode::kNumerics,
         "the loss of the evaluation rows {} to {} is {}: the model's weights have diverged", rows.front(),
         rows.back(), sums.loss_sum);
  }
  *loss_sum += sums.loss_sum;
  result->num_targets += sums.num_targets;
  result->num_tokens += num_tokens_of_rows(context, *batch);
  if (context && context->team().index > 0) return;
  result->num_rows += static_cast<int64_t>(rows.size());
  ++result->num_batches;
}

void finish(double loss_sum, const Stopwatch& stopwatch, EvalResult* result) {
  if (result->num_targets == 0) fail(ExitCode::kBadData, "the evaluation dataset has no token to predict");
  result->loss = loss_sum / static_cast<double>(std::max<int64_t>(result->num_targets, 1));
  result->perplexity = std::exp(result->loss);
  result->runtime_s = stopwatch.seconds();
}

}  // namespace

EvalResult evaluate(TrainableModel& model, const Dataset& dataset, int64_t max_rows, int64_t max_tokens,
                    const std::function<bool(double fraction)>& progress) {
  const Stopwatch stopwatch;
  EvalResult result;
  PackedBatch batch;
  double loss_sum = 0;
  for (const std::vector<int64_t>& rows : evaluation_batches(dataset, max_rows, max_tokens)) {
    add_batch(model, dataset, rows, &batch, /*context=*/nullptr, &loss_sum, &result);
    const double fraction = static_cast<double>(result.num_rows) / static_cast<double>(dataset.num_rows());
    result.stopped = progress && !progress(fraction);
    if (result.stopped) return result;
  }
  finish(loss_sum, stopwatch, &result);
  return result;
}

EvalResult evaluate_together(TrainableModel& model, const Dataset& dataset, int64_t max_rows,
                             int64_t max_tokens, Communicator& comm,
                             const std::function<bool(double fraction)>& progress, ContextRank* context) {
  const Stopwatch stopwatch;
  const auto batches = evaluation_batches(dataset, max_rows, max_tokens);
  EvalResult result;
  PackedBatch batch;
  std::vector<double> losses(batches.size());  // of this rank's batches; zero for the others'
  const auto compute = [&](size_t number) {
    add_batch(model, dataset, batches[number], &batch, context, &losses[number], &result);
  };
  result.stopped = !take_in_turn(std::ssize(batches), model, comm, context, compute, progress);
  if (result.stopped) return result;
  double loss_sum = 0;
  comm.sum(losses, {"evaluation losses"});
  for (const double loss : losses) loss_sum += loss;
  const std::vector<EvalResult> parts = comm.all_gather(result, {"evaluation"});
  result = {};
  for (const EvalResult& part : parts) {
    result.num_targets += part.num_targets;
    result.num_tokens += part.num_tokens;
    result.num_rows += part.num_rows;
    result.num_batches += part.num_batches;
  }
  finish(loss_sum, stopwatch, &result);
  return result;
}

}  // namespace tessera
