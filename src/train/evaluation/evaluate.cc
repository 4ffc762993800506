#include "train/evaluation/evaluate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "data/rows/batch_plan.h"
#include "data/rows/token_masks.h"

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

std::vector<EvalPart> evaluation_parts(int64_t num_rows, const std::function<int64_t(int64_t row)>& length_of,
                                       const EvalOptions& options) {
  std::vector<EvalPart> parts;
  const auto row_at = [&](int64_t position) {
    const auto at = static_cast<size_t>(position % num_rows);
    return options.order.empty() ? static_cast<int64_t>(at) : options.order[at];
  };
  const auto add = [&](int64_t batch, int64_t begin, int64_t end) {
    const auto length = [&](int64_t i) { return length_of(row_at(begin + i)); };
    for (std::vector<int64_t>& rows : batches_of_rows(end - begin, length, end - begin, options.max_tokens)) {
      for (int64_t& row : rows) row = row_at(begin + row);
      parts.push_back({batch, begin >= num_rows, std::move(rows)});
    }
  };
  // One rank takes a short last batch as it is; several fill up their last round from the start.
  const int64_t batch_rows = std::min(options.max_rows, num_rows);
  const int64_t round_rows = options.num_ranks == 1 ? options.max_rows : options.max_rows * options.num_ranks;
  const bool repeats = options.num_ranks > 1;
  int64_t batch = 0;
  for (int64_t round = 0; round < num_rows; round += std::min(round_rows, num_rows)) {
    if (options.drop_last && num_rows - round < round_rows) break;
    for (int64_t rank = 0; rank < options.num_ranks; ++rank, ++batch) {
      const int64_t begin = round + rank * options.max_rows;
      const int64_t end = begin + (repeats ? options.max_rows : batch_rows);
      if (begin < num_rows) add(batch, begin, std::min(end, num_rows));
      if (repeats && end > num_rows) add(batch, std::max(begin, num_rows), end);
    }
  }
  return parts;
}

double mean_over_rows(std::span<const double> loss_sums, std::span<const double> num_targets,
                      int64_t num_rows, const EvalOptions& options) {
  const auto num_ranks = static_cast<size_t>(options.num_ranks);
  double sum = 0, num_counted = 0;
  for (size_t round = 0; round < loss_sums.size(); round += num_ranks) {
    double of_round = 0;
    for (size_t rank = 0; rank < num_ranks; ++rank) of_round += num_targets[round + rank];
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      const int64_t first_row = static_cast<int64_t>(round + rank) * options.max_rows;
      const auto count = static_cast<double>(std::clamp<int64_t>(num_rows - first_row, 0, options.max_rows));
      const double targets =
          options.averages_tokens ? of_round / static_cast<double>(num_ranks) : num_targets[round + rank];
      if (targets == 0) continue;
      sum += count * (loss_sums[round + rank] / targets);
      num_counted += count;
    }
  }
  return sum / num_counted;
}

namespace {

// A rank's results of one part, in one array for all: they are summed over ranks.
struct PartSums {
  double loss = 0, targets = 0;
};

PartSums compute_part(TrainableModel& model, const Dataset& dataset, const EvalPart& part,
                      float label_smoothing, PackedBatch* batch, ContextRank* context, EvalResult* result) {
  make_packed_batch(dataset, part.rows, kNoStep, batch);
  const LossSums sums = model.forward_loss(take_slice(context, *batch), label_smoothing);
  if (!std::isfinite(sums.loss_sum)) {
    fail(ExitCode::kNumerics,
         "the loss of the evaluation rows {} to {} is {}: the model's weights have diverged",
         part.rows.front(), part.rows.back(), sums.loss_sum);
  }
  if (!part.is_repeated) {
    result->num_tokens += num_tokens_of_rows(context, *batch);
    if (!context || context->team().index == 0) result->num_rows += std::ssize(part.rows);
  }
  return {sums.loss_sum, static_cast<double>(sums.num_targets)};
}

void add_up(const std::vector<EvalPart>& parts, std::span<const double> sums, const EvalOptions& options,
            EvalResult* result) {
  const auto num_batches = static_cast<size_t>(parts.back().batch / options.num_ranks + 1) *
                           static_cast<size_t>(options.num_ranks);
  std::vector<double> losses(num_batches), targets(num_batches);
  double loss_sum = 0, num_targets = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto batch = static_cast<size_t>(parts[i].batch);
    losses[batch] += sums[2 * i];
    targets[batch] += sums[2 * i + 1];
    if (parts[i].is_repeated) continue;
    loss_sum += sums[2 * i];
    num_targets += sums[2 * i + 1];
  }
  result->num_targets = std::llround(num_targets);
  if (result->num_targets == 0) fail(ExitCode::kBadData, "the evaluation dataset has no token to predict");
  result->num_batches = std::ssize(losses);
  result->loss = mean_over_rows(losses, targets, result->num_rows, options);
  result->loss_per_token = loss_sum / num_targets;
  result->perplexity = std::exp(result->loss_per_token);
}

}  // namespace

EvalResult evaluate(TrainableModel& model, const Dataset& dataset, const EvalOptions& options,
                    Communicator& comm, const std::function<bool(double fraction)>& progress,
                    ContextRank* context) {
  const Stopwatch stopwatch;
  const std::vector<EvalPart> parts = evaluation_parts(
      dataset.num_rows(), [&dataset](int64_t row) { return dataset.row_length(row); }, options);
  if (parts.empty()) {
    fail(ExitCode::kBadConfig,
         "dataloader_drop_last: the evaluation dataset has {}, fewer than a batch takes ({}), and all are "
         "dropped: lower per_device_eval_batch_size",
         count_of(dataset.num_rows(), "row"), options.max_rows * options.num_ranks);
  }
  EvalResult result;
  PackedBatch batch;
  std::vector<double> sums(2 * parts.size());  // loss and targets of this rank's parts; zero for the others'
  const auto compute = [&](size_t number) {
    const PartSums part =
        compute_part(model, dataset, parts[number], options.label_smoothing, &batch, context, &result);
    sums[2 * number] = part.loss;
    sums[2 * number + 1] = part.targets;
  };
  result.stopped = !take_in_turn(std::ssize(parts), model, comm, context, compute, progress);
  if (result.stopped) return result;
  comm.sum(sums, {"evaluation losses"});
  const std::vector<EvalResult> of_ranks = comm.all_gather(result, {"evaluation"});
  result = {};
  for (const EvalResult& of_rank : of_ranks) {
    result.num_tokens += of_rank.num_tokens;
    result.num_rows += of_rank.num_rows;
  }
  add_up(parts, sums, options, &result);
  result.runtime_s = stopwatch.seconds();
  return result;
}

}  // namespace tessera
