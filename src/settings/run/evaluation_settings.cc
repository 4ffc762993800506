#include "settings/run/evaluation_settings.h"

#include "base/text.h"
#include "settings/flag_limits.h"
#include "settings/run/evaluation_sets.h"

namespace tessera {
namespace {

void declare_logging(FlagTable* table, RunSpec* args) {
  table->begin_section("Logging and evaluation");
  table->add_choice(
      "logging_strategy", &args->reporting.logging_strategy,
      "When the training loss is shown and recorded in trainer_state.json. metrics.jsonl has every step.");
  limit_steps(table->add("logging_steps", &args->reporting.logging_steps,
                         "Steps between log entries; a value below 1 is a fraction of all steps. An entry's "
                         "loss is the mean over the steps since the previous one."),
              /*allow_zero=*/false);
  table->add("logging_first_step", &args->reporting.logging_first_step, "Also log the first step.");
  Flag& tokens_seen = table->add_choice(
      "include_num_input_tokens_seen", &args->reporting.tokens_seen,
      "Add the number of tokens trained on so far to the log entries. There is no padding, so "
      "all and non_padding are the same. true means all, false no.");
  tokens_seen.set = [set = tokens_seen.set](const std::vector<std::string>& values) {
    const std::string word = values.size() == 1 ? lower_case(values[0]) : "";
    if (word == "true") return set({"all"});
    if (word == "false") return set({"no"});
    set(values);
  };
  table->add("disable_tqdm", &args->reporting.disable_tqdm,
             "Show lines every ten seconds in place of the progress bar.");
  table->add_choice("log_level", &args->reporting.log_level, kLogLevelWords,
                    "Messages below this level are dropped: warning hides the progress lines as well. The "
                    "error that ends a run is always shown. passive means info.");
  table->add(
      "quiet", &args->reporting.quiet,
      "Show only warnings, errors and, at the end, the folder of the model, for which standard output is "
      "kept free. Raises log_level to warning.");
  table
      ->add_choice("eval_strategy", &args->evaluation.strategy,
                   "When to evaluate on eval_dataset: never, every eval_steps, or after every epoch.")
      .aliases = {"evaluation_strategy"};
  limit_steps(table->add("eval_steps", &args->evaluation.steps,
                         "Steps between evaluations; a value below 1 is a fraction of all steps. Defaults to "
                         "logging_steps."),
              /*allow_zero=*/false);
  limit(table->add("eval_delay", &args->evaluation.delay,
                   "Steps (epochs if eval_strategy is epoch) before the first evaluation."),
        at_least(0));
  table->add("eval_on_start", &args->evaluation.on_start, "Evaluate before the first step as well.");
  table->add("eval_choices", &args->evaluation.choices,
             "JSONL files of questions with \"context\", \"choices\" and \"answer\", as for tessera eval "
             "--choices. Every evaluation scores them by likelihood and logs eval_choices_accuracy and "
             "eval_choices_accuracy_norm.");
}

void declare_best_model(FlagTable* table, RunSpec* args) {
  Flag& metric = table->add_choice(
      "metric_for_best_model", &args->evaluation.metric,
      {"loss", "loss_per_token", "perplexity", "choices_accuracy", "choices_accuracy_norm", "eval_loss",
       "eval_loss_per_token", "eval_perplexity", "eval_choices_accuracy", "eval_choices_accuracy_norm",
       "none"},
      "The evaluation result by which models are compared, and which reduce_lr_on_plateau watches; the "
      "prefix eval_ may be left out. loss is Transformers' eval_loss: the mean over rows of the loss of the "
      "batch of per_device_eval_batch_size rows that a row is in; loss_per_token the mean over tokens, and "
      "perplexity its exponential. With several evaluation sets it is NAME_loss, NAME_loss_per_token or "
      "NAME_perplexity. The best value and its step are recorded in trainer_state.json. "
      "Defaults to "
      "loss with load_best_model_at_end or reduce_lr_on_plateau, or else to none.");
  metric.value_name = "loss|loss_per_token|perplexity|choices_accuracy|choices_accuracy_norm";
  metric.set = [set = metric.set, args](const std::vector<std::string>& values) {
    if (values.size() == 1 && may_be_metric_of_set(values[0])) {
      args->evaluation.metric = values[0];
      return;
    }
    set(values);
    if (args->evaluation.metric == "none") args->evaluation.metric.clear();
  };
  table->add("greater_is_better", &args->evaluation.greater_is_better,
             "Whether greater values of metric_for_best_model are better. Defaults to false for loss and "
             "perplexity, and to true otherwise.");
  table->add(
      "load_best_model_at_end", &args->evaluation.load_best_model,
      "Make the finished model that of the best checkpoint by metric_for_best_model, instead of that of "
      "the last step. Needs checkpoints at evaluations: save_strategy best, or the same as "
      "eval_strategy with save_steps a multiple of eval_steps.");
  limit(
      table->add("early_stopping_patience", &args->evaluation.early_stopping_patience,
                 "End the run after this many evaluations in a row whose metric_for_best_model is not better "
                 "than the best so far. The finished model is written as at the end of any run. Unset by "
                 "default."),
      at_least(1));
  limit(
      table->add("early_stopping_threshold", &args->evaluation.early_stopping_threshold,
                 "For early_stopping_patience, a metric counts as better if it differs from the best so far "
                 "by more than this."),
      at_least(0));
}

}  // namespace

void declare_evaluation_flags(FlagTable* table, RunSpec* args) {
  declare_logging(table, args);
  declare_best_model(table, args);
}

}  // namespace tessera
