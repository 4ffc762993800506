#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "settings/derived.h"
#include "settings/resolve.h"
#include "settings/run/evaluation_sets.h"
#include "settings/run/schedule_keywords.h"

namespace tessera {
namespace {

// Hugging Face's sanity checks of TrainingArguments: the best model must have a checkpoint.
void check_saves_at_evaluations(const EvaluationSpec& evaluation, const SavingSpec& saving) {
  if (saving.strategy == SaveStrategy::kBest) return;
  if (word_of(saving.strategy) != word_of(evaluation.strategy)) {
    fail(ExitCode::kBadConfig,
         "load_best_model_at_end needs save_strategy best, or the same as eval_strategy; found save_strategy "
         "{} and eval_strategy {}",
         saving.strategy, evaluation.strategy);
  }
  if (evaluation.strategy != IntervalStrategy::kSteps) return;
  const double save = saving.steps, eval = *evaluation.steps;
  // Fractions are multiples up to rounding; mixed with whole steps they depend on the length of the run.
  const double factor = save < 1 && eval < 1 ? 1e6 : 1;
  const bool is_mixed = (save < 1) != (eval < 1);
  if (!is_mixed && std::fmod(std::round(save * factor), std::round(eval * factor)) == 0) return;
  fail(ExitCode::kBadConfig,
       "load_best_model_at_end needs save_steps to be a multiple of eval_steps{}, found save_steps {} and "
       "eval_steps {}",
       is_mixed ? ", and both to be steps or both fractions" : "", save, eval);
}

}  // namespace

// Runs after a DeepSpeed file has set the accumulation or left it open.
void resolve_batch(const FlagTable& table, int64_t num_ranks, RunSettings* spec) {
  if (!spec->batch.global_rows) return;
  const int64_t accumulation =
      accumulation_of_global_batch(*spec->batch.global_rows, spec->batch.rows_per_device, num_ranks);
  const bool is_given = table.is_set("gradient_accumulation_steps") || !spec->sources.deepspeed.empty();
  if (is_given && spec->batch.accumulation_steps != accumulation) {
    fail(ExitCode::kBadConfig,
         "gradient_accumulation_steps {} contradicts global_batch_size {}, which needs {} on {} with "
         "per_device_train_batch_size {}: leave it out to derive it",
         spec->batch.accumulation_steps, *spec->batch.global_rows, accumulation,
         num_ranks == 1 ? "one rank" : fmt::format("{} ranks", num_ranks), spec->batch.rows_per_device);
  }
  spec->batch.accumulation_steps = accumulation;
}

void resolve_data_order(const FlagTable& table, RunSettings* spec) {
  const bool random = spec->data.sampling_strategy != SamplingStrategy::kSequential;
  const bool is_grouped = spec->data.sampling_strategy == SamplingStrategy::kGroupByLength;
  if (table.is_set("train_sampling_strategy") || is_grouped) {
    if (table.is_set("shuffle") && spec->data.shuffle != random) {
      fail(ExitCode::kBadConfig, "shuffle {} contradicts train_sampling_strategy {}: give one of them",
           spec->data.shuffle, spec->data.sampling_strategy);
    }
    spec->data.shuffle = random;
  }
  if (!is_grouped)
    spec->data.sampling_strategy =
        spec->data.shuffle ? SamplingStrategy::kRandom : SamplingStrategy::kSequential;
  if (is_grouped && spec->data.streaming) {
    fail(ExitCode::kBadConfig,
         "train_sampling_strategy group_by_length needs the lengths of all rows, which streaming does not "
         "know: leave one of the two out");
  }
  // Rows that are taken as they are fed need no large blocks, for which the first step would wait.
  const bool is_fed = !spec->data.dataset_spool.empty() && !spec->data.shuffle;
  if (is_fed && !table.is_set("streaming_buffer_rows")) spec->data.streaming_buffer_rows = 1024;
  const bool draws_more = spec->objective.neftune_alpha ||
                          (spec->lora.finetuning_type == FinetuningType::kLora && spec->lora.dropout > 0);
  if (is_grouped && draws_more && spec->batch.num_epochs > 1) {
    log_warning(
        "train_sampling_strategy group_by_length: from the second epoch on, Hugging Face's Trainer has "
        "another order with {}, which draws from the same numbers; here it is the one without",
        spec->objective.neftune_alpha ? "neftune_noise_alpha" : "lora_dropout");
  }
}

// A form with settings of its own and without their text was not set by a flag.
void resolve_schedule(RunSettings* spec) {
  ScheduleSpec& schedule = spec->schedule;
  const ScheduleType type = schedule_type(schedule.form);
  const std::string& keywords = spec->sources.json_texts["lr_scheduler_kwargs"];
  if (!keywords.empty() || schedule.form == schedule_of(type))
    schedule.form = read_schedule_keywords(type, keywords);
  make_schedule(schedule, 1000);
}

void check_packing(const FlagTable& table, const DataSpec& data) {
  const bool is_packed = data.packing || data.eval_packing.value_or(false);
  check_joined(data.packing_strategy, data.packing_cross_document_attention, data.packing);
  if (table.is_set("packing_strategy") && !is_packed && data.packing_strategy != PackingStrategy::kBfd &&
      data.packing_strategy != PackingStrategy::kAuto)
    log_warning("packing_strategy has no effect: packing is false");
}

void check_token_average(const RunSpec& spec, int64_t world_size) {
  if (spec.objective.average_tokens_across_devices || world_size == 1) return;
  const auto refuse = [](bool found, const char* what) {
    if (!found) return;
    fail(ExitCode::kBadConfig,
         "average_tokens_across_devices false cannot be combined with {}: the mean over a rank's own rows "
         "counts, and which these are must follow from per_device_train_batch_size",
         what);
  };
  refuse(spec.batch.global_rows.has_value(), "global_batch_size");
  refuse(spec.sharding.context_parallel_size > 1, "context_parallel_size");
  refuse(spec.outer.sync_every > 0, "sync_every");
}

void resolve_spool(const FlagTable& table, const BatchSpec& batch, DataSpec* data) {
  if (data->dataset_spool.empty()) return;
  const auto refuse = [](const char* what, const char* reason) {
    fail(ExitCode::kBadConfig, "dataset_spool contradicts {}: {}", what, reason);
  };
  if (!data->dataset.empty()) refuse("dataset", "leave one of the two out");
  if (table.is_set("streaming") && !data->streaming)
    refuse("streaming false", "its rows are there once, while training uses them");
  if (data->validation_split_percentage > 0)
    refuse("validation_split_percentage", "give rows for evaluation as eval_dataset");
  if (batch.max_steps < 1) {
    fail(ExitCode::kBadConfig,
         "dataset_spool needs max_steps: the number of rows is not known when training begins");
  }
  data->streaming = true;
}

void check_streaming(const DataSpec& data, const BatchSpec& batch) {
  if (!data.streaming) return;
  if (batch.max_steps < 1)
    fail(ExitCode::kBadConfig,
         "streaming needs max_steps: the number of rows is not known when training begins");
  if (data.validation_split_percentage > 0) {
    fail(ExitCode::kBadConfig,
         "streaming contradicts validation_split_percentage: give rows for evaluation as eval_dataset");
  }
}

void resolve_evaluation(RunSettings* spec) {
  const RunSpec& given = *spec;
  const bool splits = given.data.validation_split_percentage > 0;
  if (splits && !given.data.eval_dataset.empty())
    fail(ExitCode::kBadConfig,
         "validation_split_percentage contradicts eval_dataset: leave one of the two out");
  if (given.evaluation.evaluates() && given.data.eval_dataset.empty() && !splits) {
    fail(ExitCode::kBadConfig, "{} needs an eval_dataset, or validation_split_percentage",
         given.evaluation.on_start ? "eval_on_start"
                                   : fmt::format("eval_strategy {}", given.evaluation.strategy));
  }
  evaluation_sets(given.data.eval_dataset);  // refuses those that are not well-formed
  if (!given.evaluation.evaluates() && !given.data.eval_dataset.empty()) {
    log_warning("eval_dataset has no effect: eval_strategy is no");
  }
  if (!given.evaluation.evaluates() && splits) {
    log_warning("validation_split_percentage keeps rows from training, but eval_strategy is no");
  }
  if (given.schedule.needs_evaluations() && given.evaluation.strategy == IntervalStrategy::kNo) {
    fail(ExitCode::kBadConfig, "lr_scheduler_type reduce_lr_on_plateau needs eval_strategy steps or epoch");
  }
  if (given.evaluation.strategy == IntervalStrategy::kSteps && !given.evaluation.steps)
    spec->evaluation.steps = given.reporting.logging_steps;
  if (!given.evaluation.choices.empty() && !given.evaluation.evaluates()) {
    log_warning("eval_choices has no effect: eval_strategy is no");
  }
}

void resolve_best_model(const FlagTable& table, RunSettings* spec) {
  std::string& metric = spec->evaluation.metric;
  const bool stops_early = spec->evaluation.early_stopping_patience.has_value();
  if (metric.empty() && (spec->evaluation.load_best_model || spec->schedule.needs_evaluations())) {
    metric = "loss";
  }
  if (metric.empty() && (stops_early || spec->saving.strategy == SaveStrategy::kBest)) {
    fail(ExitCode::kBadConfig, "{} needs a metric_for_best_model, such as loss",
         stops_early ? "early_stopping_patience" : "save_strategy best");
  }
  if (!stops_early) warn_if_set(table, {"early_stopping_threshold"}, "there is no early_stopping_patience");
  if (metric.empty()) {
    if (spec->evaluation.greater_is_better)
      log_warning("greater_is_better has no effect: there is no metric_for_best_model");
    return;
  }
  const bool is_default = !table.is_set("metric_for_best_model");
  if (!metric.starts_with("eval_")) metric = "eval_" + metric;
  check_metric(*spec, is_default);
  if (spec->evaluation.strategy == IntervalStrategy::kNo &&
      (spec->evaluation.load_best_model || stops_early || spec->saving.strategy == SaveStrategy::kBest)) {
    fail(ExitCode::kBadConfig, "{} needs eval_strategy steps or epoch",
         spec->evaluation.load_best_model ? "load_best_model_at_end"
         : stops_early                    ? "early_stopping_patience"
                                          : "save_strategy best");
  }
  if (spec->evaluation.load_best_model) check_saves_at_evaluations(spec->evaluation, spec->saving);
  if (stops_early && !spec->evaluation.load_best_model) {
    log_warning(
        "early_stopping_patience without load_best_model_at_end: the finished model is that of the "
        "last step, not the best");
  }
  // Hugging Face asks for "loss" at the end of the name alone, for which a greater perplexity is better.
  if (!spec->evaluation.greater_is_better) {
    spec->evaluation.greater_is_better =
        !metric.ends_with("loss") && !metric.ends_with("loss_per_token") && !metric.ends_with("perplexity");
  }
}

void check_quiet(const ReportingSpec& reporting) {
  if (!reporting.quiet || !reporting.log_level || *reporting.log_level > LogLevel::kInfo) return;
  fail(ExitCode::kBadConfig, "quiet true contradicts log_level {}: it hides messages below warning",
       *reporting.log_level == LogLevel::kInfo ? "info" : "debug");
}

}  // namespace tessera
