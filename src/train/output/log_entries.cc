#include "train/output/log_entries.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace tessera {
namespace {

// speed_metrics of transformers/trainer_utils.py: PREFIX_runtime, _samples_per_second, _steps_per_second.
void add_speed(const std::string& prefix, double runtime_s, double num_samples, int64_t num_steps,
               LogEntry* entry) {
  entry->values.emplace_back(prefix + "_runtime", round_decimals(runtime_s, 4));
  entry->values.emplace_back(prefix + "_samples_per_second", round_decimals(num_samples / runtime_s, 3));
  entry->values.emplace_back(prefix + "_steps_per_second",
                             round_decimals(static_cast<double>(num_steps) / runtime_s, 3));
}

}  // namespace

double floating_point_ops(const TrainableModel& model, int64_t num_tokens) {
  int64_t counted = model.weight_layout().num_parameters();
  if (model.is_adapted()) counted += model.layout().num_parameters();
  for (const Parameter& parameter : model.weight_layout().parameters()) {
    if (parameter.kind == ParameterKind::kEmbedding) counted -= parameter.num_elements;
  }
  return 6.0 * static_cast<double>(num_tokens) * static_cast<double>(counted);
}

LogEntry evaluation_entry(const EvalResult& result, const std::optional<ChoiceResult>& choices) {
  LogEntry entry;
  entry.values = {{"eval_loss", result.loss},
                  {"eval_loss_per_token", result.loss_per_token},
                  {"eval_perplexity", result.perplexity}};
  if (choices) {
    const auto add = [&entry](const char* name, double value) {
      if (!std::isnan(value)) entry.values.emplace_back(name, value);
    };
    add("eval_choices_accuracy", choices->accuracy);
    add("eval_choices_accuracy_stderr", choices->accuracy_stderr);
    add("eval_choices_accuracy_norm", choices->accuracy_norm);
    add("eval_choices_accuracy_norm_stderr", choices->accuracy_norm_stderr);
  }
  add_speed("eval", result.runtime_s, static_cast<double>(result.num_rows), result.num_batches, &entry);
  return entry;
}

LogEntry final_entry(const Progress& progress, double num_samples, double runtime_s) {
  LogEntry entry;
  add_speed("train", runtime_s, num_samples, progress.step, &entry);
  entry.values.emplace_back("total_flos", progress.total_flos);
  entry.values.emplace_back("train_loss", progress.mean_loss());
  return entry;
}

bool has_evaluation(const std::vector<LogEntry>& log_history, int64_t step) {
  return std::ranges::any_of(log_history, [step](const LogEntry& entry) {
    return entry.step == step &&
           std::ranges::any_of(entry.values, [](const auto& value) { return value.first == "eval_loss"; });
  });
}

}  // namespace tessera
