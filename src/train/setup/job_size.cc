#include "train/setup/job_size.h"

#include <cmath>

#include "base/divide_up.h"
#include "base/error.h"
#include "base/text.h"
#include "comm/communicator.h"
#include "settings/spec_variants.h"
#include "train/setup/run_planning.h"
#include "train/setup/training_data.h"

namespace tessera {
namespace {

JobSize job_of_tokens(int64_t num_tokens, int64_t step_rows, int64_t row_tokens) {
  JobSize job;
  job.max_row_tokens = job.mean_row_tokens = row_tokens;
  job.num_steps = divide_up(num_tokens, step_rows * row_tokens);
  job.num_tokens = static_cast<double>(num_tokens);
  return job;
}

JobSize job_of_steps(int64_t num_steps, int64_t step_rows, int64_t row_tokens) {
  JobSize job;
  job.max_row_tokens = job.mean_row_tokens = row_tokens;
  job.num_steps = num_steps;
  job.num_tokens = static_cast<double>(num_steps) * static_cast<double>(step_rows * row_tokens);
  job.origin = fmt::format("max_steps with rows of {}", format_count(row_tokens, "token"));
  return job;
}

JobSize job_of_dataset(const RunSpec& spec, const ModelConfig& config, int64_t world_size, int64_t row_limit,
                       int64_t num_threads, TrainObserver& observer) {
  if (needs_tokenizer(spec.data.dataset) && tokenizer_folder(spec.model).empty()) {
    fail(ExitCode::kUsage,
         "--dataset: counting its tokens needs a tokenizer: give --tokenizer DIR with --preset");
  }
  ThreadPool pool(num_threads);
  const TrainingData data =
      open_training_data(without_evaluation(spec), config, pool, single_process(), observer, {});
  BatchPlanOptions options = spec.batch_options(world_size);
  const int64_t step_rows = global_batch_rows(options);
  if (data.train.supply() != nullptr) return job_of_steps(spec.batch.max_steps, step_rows, row_limit);

  options.mixture = data.train.mixture();
  for (const int64_t share : mixture_shares(options.mixture)) options.num_rows += share;
  JobSize job;
  job.max_row_tokens = data.train.max_row_length();
  const double mean =
      static_cast<double>(tokens_of_epoch(data.train)) / static_cast<double>(options.num_rows);
  job.mean_row_tokens = std::llround(std::ceil(mean));
  const std::string rows =
      fmt::format("{} of {}", format_count(options.num_rows, "row"),
                  format_count(std::llround(mean * static_cast<double>(options.num_rows)), "token"));
  if (spec.batch.max_steps > 0) {
    job.num_steps = spec.batch.max_steps;
    job.num_tokens = static_cast<double>(spec.batch.max_steps * step_rows) * mean;
    job.origin = "max_steps; an epoch has " + rows;
  } else {
    job.num_steps = BatchPlan(options).steps_for_epochs(spec.batch.num_epochs);
    job.num_tokens = spec.batch.num_epochs * static_cast<double>(options.num_rows) * mean;
    job.origin = fmt::format("{:g} x {}", spec.batch.num_epochs, rows);
  }
  return job;
}

}  // namespace

std::optional<JobSize> job_size(const RunSpec& spec, const ModelConfig& config, int64_t world_size,
                                std::optional<int64_t> num_tokens, int64_t num_threads,
                                TrainObserver& observer) {
  const int64_t row_limit = spec.data.row_limit(config);
  const int64_t step_rows = global_batch_rows(spec.batch_options(world_size));
  if (num_tokens) {
    JobSize job = job_of_tokens(*num_tokens, step_rows, row_limit);
    job.origin = fmt::format("--tokens, rows of {}", format_count(row_limit));
    return job;
  }
  if (!spec.data.dataset.empty())
    return job_of_dataset(spec, config, world_size, row_limit, num_threads, observer);
  if (spec.batch.max_steps > 0) return job_of_steps(spec.batch.max_steps, step_rows, row_limit);
  return std::nullopt;
}

JobSize assumed_job(const RunSpec& spec, const ModelConfig& config, int64_t world_size) {
  constexpr int64_t kNumTokens = 1'000'000'000;
  JobSize job = job_of_tokens(kNumTokens, global_batch_rows(spec.batch_options(world_size)),
                              spec.data.row_limit(config));
  job.origin = "--dataset or --tokens sets them";
  return job;
}

}  // namespace tessera
