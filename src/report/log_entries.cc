#include "report/log_entries.h"

#include <algorithm>
#include <cmath>
#include <iterator>
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

LogEntry evaluation_entry(const std::string& prefix, const EvalResult& result) {
  LogEntry entry;
  entry.values = {{prefix + "_loss", result.loss},
                  {prefix + "_loss_per_token", result.loss_per_token},
                  {prefix + "_perplexity", result.perplexity}};
  add_speed(prefix, result.runtime_s, static_cast<double>(result.num_rows), result.num_batches, &entry);
  return entry;
}

void add_choices(const ChoiceResult& choices, LogEntry* entry) {
  auto at =
      std::ranges::find_if(entry->values, [](const auto& value) { return value.first == "eval_runtime"; });
  const auto add = [&](const char* name, double value) {
    if (!std::isnan(value)) at = std::next(entry->values.insert(at, {name, value}));
  };
  add("eval_choices_accuracy", choices.accuracy);
  add("eval_choices_accuracy_stderr", choices.accuracy_stderr);
  add("eval_choices_accuracy_norm", choices.accuracy_norm);
  add("eval_choices_accuracy_norm_stderr", choices.accuracy_norm_stderr);
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
    return entry.step == step && std::ranges::any_of(entry.values, [](const auto& value) {
             return value.first.starts_with("eval_") && value.first.ends_with("_loss");
           });
  });
}

}  // namespace tessera
