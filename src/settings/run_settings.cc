#include "settings/run_settings.h"
#include "settings/state/lora_settings.h"
#include "settings/state/quantization_settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/ranks/launch_variables.h"
#include "optim/schedule.h"
#include "settings/deepspeed/deepspeed_settings.h"
#include "settings/ranks/context_settings.h"
#include "settings/ranks/device_settings.h"
#include "settings/ranks/outer_settings.h"
#include "settings/resolved_settings.h"
#include "settings/run/evaluation_sets.h"
#include "settings/run/row_settings.h"
#include "settings/state/offload_settings.h"
#include "settings/state/optimizer_settings.h"

namespace tessera {
namespace {

using nlohmann::json;

std::string_view dtype_word(const RunSpec& args) {
  return word_of(kTrainingDTypeWords, args.precision.dtype);
}

// bf16 is another spelling of dtype: true is bfloat16, false float32, as in Hugging Face.
void resolve_dtype(const FlagTable& table, RunSpec* args) {
  if (args->precision.bf16) {
    const bool contradicts =
        table.is_set("dtype") && *args->precision.bf16 != (args->precision.dtype == DType::kBF16);
    if (contradicts) {
      fail(ExitCode::kBadConfig, "bf16 {} contradicts dtype {}: give one of them", *args->precision.bf16,
           dtype_word(*args));
    }
    args->precision.dtype = *args->precision.bf16 ? DType::kBF16 : DType::kF32;
  }
  args->precision.bf16 = args->precision.dtype == DType::kBF16;
  if (args->precision.bf16_full_eval && !*args->precision.bf16) {
    fail(ExitCode::kBadConfig,
         "bf16_full_eval true contradicts dtype float32: evaluation runs in the training dtype");
  }
  if (!args->precision.save_dtype) args->precision.save_dtype = args->precision.dtype;
}

void resolve_checkpointing(const FlagTable& table, const RunSpec& args) {
  if (args.placement.gradient_checkpointing || args.placement.fit ||
      !table.is_set("gradient_checkpointing_mode"))
    return;
  log_warning("gradient_checkpointing_mode has no effect: gradient_checkpointing is false");
}

// Runs after a DeepSpeed file has set the accumulation or left it open.
void resolve_batch(const FlagTable& table, int64_t num_ranks, RunSpec* args) {
  if (!args->batch.global_rows) return;
  const int64_t accumulation =
      accumulation_of_global_batch(*args->batch.global_rows, args->batch.rows_per_device, num_ranks);
  const bool is_given = table.is_set("gradient_accumulation_steps") || !args->sources.deepspeed.empty();
  if (is_given && args->batch.accumulation_steps != accumulation) {
    fail(ExitCode::kBadConfig,
         "gradient_accumulation_steps {} contradicts global_batch_size {}, which needs {} on {} with "
         "per_device_train_batch_size {}: leave it out to derive it",
         args->batch.accumulation_steps, *args->batch.global_rows, accumulation,
         num_ranks == 1 ? "one rank" : fmt::format("{} ranks", num_ranks), args->batch.rows_per_device);
  }
  args->batch.accumulation_steps = accumulation;
}

// Settings for sharing work among ranks. None has an effect on a single rank.
void resolve_ranks(const FlagTable& table, int64_t world_size, RunSpec* args) {
  constexpr int64_t kDefaultStage = 2;
  if (!args->sharding.stage) args->sharding.stage = world_size > 1 ? kDefaultStage : 0;
  if (args->sharding.gather_schedule == GatherChoice::kPerLayer && *args->sharding.stage != 3) {
    fail(ExitCode::kBadConfig,
         "gather_schedule per_layer needs zero_stage 3, found {}: below it every node keeps all weights",
         *args->sharding.stage);
  }
  if (args->sharding.load_once == LoadOnce::kPerCluster && *args->sharding.stage == 0 && world_size > 1) {
    fail(ExitCode::kBadConfig,
         "load_weights_once per_cluster needs zero_stage 1 or more, found 0: every node then keeps the "
         "optimizer state of all weights and has to read them");
  }
  const bool is_bf16 = args->precision.dtype == DType::kBF16;
  if (args->sharding.quantized_weights && !is_bf16) {
    fail(ExitCode::kBadConfig, "zero_quantized_weights needs dtype bfloat16, found {}", dtype_word(*args));
  }
  if (args->sharding.quantized_weights && *args->sharding.stage == 0 && world_size > 1) {
    fail(ExitCode::kBadConfig,
         "zero_quantized_weights needs zero_stage 1 or more, found 0: every node then updates all weights "
         "itself");
  }
  if (args->sharding.grad_accum_dtype == DType::kBF16) {
    if (!is_bf16) {
      fail(ExitCode::kBadConfig, "grad_accum_dtype bfloat16 needs dtype bfloat16, found {}",
           dtype_word(*args));
    }
    if (world_size == 1) {
      log_warning("grad_accum_dtype bfloat16 has no effect on one rank: gradients are added up in float32");
      args->sharding.grad_accum_dtype = DType::kF32;  // the type that memory is planned with
    }
  }
  if (!args->sharding.grad_accum_dtype) args->sharding.grad_accum_dtype = DType::kF32;
  if (!args->sharding.communication_dtype) args->sharding.communication_dtype = args->precision.dtype;
  if (!is_bf16 && args->sharding.communication_dtype == DType::kBF16) {
    fail(ExitCode::kBadConfig, "communication_data_type bf16 needs dtype bfloat16, found {}",
         dtype_word(*args));
  }
  if (world_size > 1) return;
  for (const char* name :
       {"zero_stage", "gather_schedule", "zero_quantized_weights", "zero_quantized_gradients",
        "load_weights_once", "ddp_timeout", "connections", "fabric", "interface"}) {
    constexpr int64_t kTrainersTimeout = 1800;
    const bool is_as_without =
        (name == std::string_view("zero_stage") && *args->sharding.stage == 0) ||
        (name == std::string_view("ddp_timeout") && args->network.timeout_s == kTrainersTimeout);
    if (table.is_set(name) && !is_as_without) log_warning("{} has no effect on one rank", name);
  }
}

// Gradients of a group are gone once it is updated: several passes cannot add to them, nor can what is known
// only after the step prevent the update.
void resolve_optimizer_in_backward(const FlagTable& table, int64_t world_size, RunSpec* args) {
  if (!args->placement.optimizer_in_backward) {
    if (args->clipping.mode != ClipMode::kGlobal) {
      fail(ExitCode::kBadConfig, "clip_mode {} needs optimizer_in_backward: otherwise clipping is global",
           args->clipping.mode);
    }
    return;
  }
  if (world_size > 1 && *args->sharding.stage < 2) {
    fail(ExitCode::kBadConfig,
         "optimizer_in_backward on several ranks needs zero_stage 2 or 3, which divide gradients among them, "
         "found {}",
         *args->sharding.stage);
  }
  if (world_size > 1 && args->clipping.mode == ClipMode::kLayer) {
    fail(ExitCode::kBadConfig,
         "clip_mode layer needs one rank, found {}: on several no rank has the gradients of a whole layer; "
         "choose global or previous",
         world_size);
  }
  if (args->placement.merge_micro_batches == AutoChoice::kNever) {
    fail(ExitCode::kBadConfig,
         "optimizer_in_backward contradicts merge_micro_batches never: a layer is updated once all "
         "micro-batches of the step have gone through it");
  }
  args->placement.merge_micro_batches = AutoChoice::kAlways;
  if (table.is_set("clip_mode") && args->clipping.max_norm == 0) {
    log_warning("clip_mode has no effect: max_grad_norm is 0");
  }
  if (args->computes_norm_first()) return;
  const std::string needs = args->guards.replay_check_steps > 0 ? "replay_check_steps"
                            : args->guards.loss_spike_policy != LossSpikePolicy::kWarn
                                ? fmt::format("loss_spike_policy {}", args->guards.loss_spike_policy)
                                : "";
  if (!needs.empty()) {
    fail(ExitCode::kBadConfig,
         "{} cannot keep optimizer_in_backward from updating: it needs clip_mode global with max_grad_norm "
         "above 0, which computes a step before it updates, found clip_mode {} and max_grad_norm {}",
         needs, args->clipping.mode, args->clipping.max_norm);
  }
}

void check_streaming(const RunSpec& args) {
  if (!args.data.streaming) return;
  if (args.batch.max_steps < 1)
    fail(ExitCode::kBadConfig,
         "streaming needs max_steps: the number of rows is not known when training begins");
  if (args.data.validation_split_percentage > 0) {
    fail(ExitCode::kBadConfig,
         "streaming contradicts validation_split_percentage: give rows for evaluation as eval_dataset");
  }
}

void resolve_evaluation(const RunSpec& given, RunSpec* args) {
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
    args->evaluation.steps = given.reporting.logging_steps;
  if (!given.evaluation.choices.empty() && !given.evaluation.evaluates()) {
    log_warning("eval_choices has no effect: eval_strategy is no");
  }
}

// Hugging Face's sanity checks of TrainingArguments: the best model must have a checkpoint.
void check_saves_at_evaluations(const RunSpec& args) {
  if (args.saving.strategy == SaveStrategy::kBest) return;
  if (word_of(args.saving.strategy) != word_of(args.evaluation.strategy)) {
    fail(ExitCode::kBadConfig,
         "load_best_model_at_end needs save_strategy best, or the same as eval_strategy; found save_strategy "
         "{} and eval_strategy {}",
         args.saving.strategy, args.evaluation.strategy);
  }
  if (args.evaluation.strategy != IntervalStrategy::kSteps) return;
  const double save = args.saving.steps, eval = *args.evaluation.steps;
  // Fractions are multiples up to rounding; mixed with whole steps they depend on the length of the run.
  const double factor = save < 1 && eval < 1 ? 1e6 : 1;
  const bool is_mixed = (save < 1) != (eval < 1);
  if (!is_mixed && std::fmod(std::round(save * factor), std::round(eval * factor)) == 0) return;
  fail(ExitCode::kBadConfig,
       "load_best_model_at_end needs save_steps to be a multiple of eval_steps{}, found save_steps {} and "
       "eval_steps {}",
       is_mixed ? ", and both to be steps or both fractions" : "", save, eval);
}

void resolve_best_model(const FlagTable& table, RunSpec* args) {
  std::string& metric = args->evaluation.metric;
  const bool stops_early = args->evaluation.early_stopping_patience.has_value();
  if (metric.empty() && (args->evaluation.load_best_model || args->schedule.needs_evaluations())) {
    metric = "loss";
  }
  if (metric.empty() && (stops_early || args->saving.strategy == SaveStrategy::kBest)) {
    fail(ExitCode::kBadConfig, "{} needs a metric_for_best_model, such as loss",
         stops_early ? "early_stopping_patience" : "save_strategy best");
  }
  if (table.is_set("early_stopping_threshold") && !stops_early) {
    log_warning("early_stopping_threshold has no effect: there is no early_stopping_patience");
  }
  if (metric.empty()) {
    if (args->evaluation.greater_is_better)
      log_warning("greater_is_better has no effect: there is no metric_for_best_model");
    return;
  }
  const bool is_default = !table.is_set("metric_for_best_model");
  if (!metric.starts_with("eval_")) metric = "eval_" + metric;
  check_metric(*args, is_default);
  if (args->evaluation.strategy == IntervalStrategy::kNo &&
      (args->evaluation.load_best_model || stops_early || args->saving.strategy == SaveStrategy::kBest)) {
    fail(ExitCode::kBadConfig, "{} needs eval_strategy steps or epoch",
         args->evaluation.load_best_model ? "load_best_model_at_end"
         : stops_early                    ? "early_stopping_patience"
                                          : "save_strategy best");
  }
  if (args->evaluation.load_best_model) check_saves_at_evaluations(*args);
  if (stops_early && !args->evaluation.load_best_model) {
    log_warning(
        "early_stopping_patience without load_best_model_at_end: the finished model is that of the "
        "last step, not the best");
  }
  // Hugging Face asks for "loss" at the end of the name alone, for which a greater perplexity is better.
  if (!args->evaluation.greater_is_better) {
    args->evaluation.greater_is_better =
        !metric.ends_with("loss") && !metric.ends_with("loss_per_token") && !metric.ends_with("perplexity");
  }
}

void check_quiet(const RunSpec& args) {
  if (!args.reporting.quiet || !args.reporting.log_level || *args.reporting.log_level > LogLevel::kInfo)
    return;
  fail(ExitCode::kBadConfig, "quiet true contradicts log_level {}: it hides messages below warning",
       *args.reporting.log_level == LogLevel::kInfo ? "info" : "debug");
}

}  // namespace

LogLevel ReportingSpec::lowest_log_level() const {
  return log_level.value_or(quiet ? LogLevel::kWarning : LogLevel::kInfo);
}

int64_t ShardingSpec::prefetch_elements(int64_t hidden_size) const {
  return prefetch_bucket_size.value_or(hidden_size * hidden_size * 9 / 10);
}

int64_t ShardingSpec::persistence_threshold_elements(int64_t hidden_size) const {
  return persistence_threshold.value_or(10 * hidden_size);
}

int64_t DataSpec::row_limit(int64_t max_position_embeddings) const {
  if (max_length && (*max_length != kMaxRowLength || !dataset.empty())) return *max_length;
  const bool is_text = dataset.empty() || needs_tokenizer(dataset);
  return is_text ? default_row_limit(max_position_embeddings) : max_position_embeddings;
}

BatchPlanOptions RunSpec::batch_options(int64_t world_size) const {
  BatchPlanOptions options;
  options.num_rows = 0;
  options.micro_batch_size = batch.rows_per_device;
  options.gradient_accumulation_steps = batch.accumulation_steps;
  options.world_size = num_row_ranks(*this, world_size);
  options.global_batch_size = batch.global_rows;
  options.shuffle = data.shuffle;
  // Grouping by length draws from the generator that the Trainer seeds with `seed`, whatever data_seed is.
  const bool is_grouped = data.sampling_strategy == SamplingStrategy::kGroupByLength;
  options.seed = is_grouped ? static_cast<uint64_t>(seed) : shuffle_seed();
  options.drop_last = data.drop_last;
  return options;
}

ResumeSpec parse_resume(const std::string& text) {
  using enum ResumeSpec::From;
  const std::string word = lower_case(text);
  if (word.empty() || word == "false" || word == "none" || word == "no") return {};
  if (word == "true" || word == "yes") return {kNewest, ""};
  if (word == "auto") return {kNewestIfAny, ""};
  return {kFolder, text};
}

std::string resume_text(const ResumeSpec& resume) {
  using enum ResumeSpec::From;
  return resume.from == kNothing       ? ""
         : resume.from == kNewest      ? "true"
         : resume.from == kNewestIfAny ? "auto"
                                       : resume.folder;
}

void apply_resume_variable(const Environment& environment, FlagTable* table, RunSpec* args) {
  const std::string value = environment(kResumeVariable).value_or("");
  if (value.empty()) return;
  if (value != "auto") {
    fail(ExitCode::kBadConfig, "environment: expected {} to be auto, found '{}'", kResumeVariable,
         printable(value));
  }
  if (!table->is_set("resume_from_checkpoint")) {
    table->set(*table->find("resume_from_checkpoint"), {value}, kResumeVariable);
    args->resume.by_agent = true;
  }
}

void read_launch_variables(const Environment& environment, RunSpec* args) {
  args->launch.id = environment(kLaunchIdVariable).value_or("");
  args->launch.is_restart = !environment(kResumeVariable).value_or("").empty();
  const std::string grace = environment(kTerminationGraceVariable).value_or("");
  if (grace.empty()) return;
  double seconds = -1;
  const auto [rest, error] = std::from_chars(grace.data(), grace.data() + grace.size(), seconds);
  if (error != std::errc() || *rest != '\0' || !(seconds >= 0)) {
    fail(ExitCode::kBadConfig, "environment: expected {} to be a number of seconds, found '{}'",
         kTerminationGraceVariable, printable(grace));
  }
  args->launch.grace_s = seconds;
}

void resolve_run_spec(const FlagTable& table, int64_t world_size, RunSpec* args) {
  TESSERA_CHECK(world_size >= 1, "world_size={}", world_size);
  if (!args->sources.deepspeed.empty()) {
    apply_deepspeed(read_deepspeed(args->sources.deepspeed), table, world_size, args);
  } else if (table.is_set("ds_compat")) {
    log_warning("ds_compat has no effect: there is no deepspeed file");
  }
  if (table.is_set("grace_period_s") && args->time_to_end_s() < args->grace_period_s) {
    log_warning(
        "grace_period_s {}: tessera launch kills its ranks {} s after a signal, and the shorter time "
        "applies; give it a longer --termination_grace_s",
        args->grace_period_s, args->launch.grace_s);
  }
  check_lora_arguments(table, *args);
  check_quantization_arguments(table, *args);
  for (const Flag& flag : table.flags()) {
    if (table.is_set(flag.name)) args->sources.given.insert(flag.name);
  }
  for (const auto& [name, origin] : args->sources.deepspeed_origins) args->sources.given.insert(name);
  if (args->sources.given.contains("disable_gradient_checkpointing"))
    args->sources.given.insert("gradient_checkpointing");
  resolve_dtype(table, args);
  check_context_ranks(*args, world_size);
  resolve_batch(table, num_row_ranks(*args, world_size), args);
  resolve_checkpointing(table, *args);
  resolve_ranks(table, world_size, args);
  resolve_form(table, world_size, args);
  check_optimizer(table, *args);
  check_device(*args, world_size);
  check_outer_arguments(table, *args);
  check_context_arguments(*args);
  resolve_data_order(table, args);
  check_packing(table, *args);
  check_token_average(*args, world_size);
  check_streaming(*args);
  check_quiet(*args);
  resolve_evaluation(*args, args);
  resolve_best_model(table, args);
  // Checks type and keywords now, so that a mistake is reported before the data is read.
  make_schedule(args->schedule, 1000);
}

void resolve_form(const FlagTable& table, int64_t world_size, RunSpec* args) {
  resolve_optimizer_in_backward(table, world_size, args);
  resolve_offload(table, world_size, args);
}

int64_t interval_in_steps(double interval, int64_t num_training_steps) {
  if (interval >= 1) return static_cast<int64_t>(interval);
  return std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(static_cast<double>(num_training_steps) * interval)));
}

std::string training_arguments_json(const RunSpec& args) {
  RunSpec copy = args;
  FlagTable table;
  declare_training_flags(&table, &copy);
  json out = json::object();
  for (const Flag& flag : table.flags()) {
    if (flag.get) out[flag.name] = setting_json(flag);
  }
  for (const auto& [flag, name] : args.model.hub_names) out[flag] = name;
  return out.dump(2) + "\n";
}

}  // namespace tessera
