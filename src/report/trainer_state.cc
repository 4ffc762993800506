#include "report/trainer_state.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/json.h"

namespace tessera {
namespace {

using nlohmann::json;

// Formats a number as Python does: floats keep a decimal point.
std::string python_number(const LogEntry::Value& value) {
  if (const int64_t* whole = std::get_if<int64_t>(&value)) return std::to_string(*whole);
  const double real = std::get<double>(value);
  if (std::isnan(real)) return "nan";
  return std::isinf(real) ? (real > 0 ? "inf" : "-inf") : json(real).dump();
}

json entry_json(const LogEntry& entry) {
  json out = {{"epoch", entry.epoch}, {"step", entry.step}};
  for (const auto& [name, value] : entry.values) {
    std::visit([&out, &key = name](auto number) { out[key] = number; }, value);
  }
  return out;
}

}  // namespace

double round_decimals(double value, int decimals) {
  const double scale = std::pow(10.0, decimals);
  return std::round(value * scale) / scale;
}

std::string log_line_text(const LogEntry& entry) {
  std::string text = "{";
  for (const auto& [name, value] : entry.values) {
    const double* real = std::get_if<double>(&value);
    const LogEntry::Value shown = real && name == "loss" ? LogEntry::Value(round_decimals(*real, 4)) : value;
    text += fmt::format("'{}': {}, ", name, python_number(shown));
  }
  return text + fmt::format("'epoch': {}}}", python_number(round_decimals(entry.epoch, 2)));
}

std::string trainer_state_json(const TrainerState& state, bool should_save, bool should_training_stop) {
  json history = json::array();
  for (const LogEntry& entry : state.log_history) history.push_back(entry_json(entry));
  const json control = {{"args",
                         {{"should_epoch_stop", false},
                          {"should_evaluate", false},
                          {"should_log", false},
                          {"should_save", should_save},
                          {"should_training_stop", should_training_stop}}},
                        {"attributes", json::object()}};
  json callbacks = {{"TrainerControl", control}};
  if (const auto& stopping = state.early_stopping) {
    callbacks["EarlyStoppingCallback"] = {
        {"args",
         {{"early_stopping_patience", stopping->patience},
          {"early_stopping_threshold", stopping->threshold}}},
        {"attributes", {{"early_stopping_patience_counter", stopping->patience_counter}}}};
  }
  const json out = {{"best_global_step", or_null(state.best_global_step)},
                    {"best_metric", or_null(state.best_metric)},
                    {"best_model_checkpoint", or_null(state.best_model_checkpoint)},
                    {"epoch", state.epoch},
                    {"eval_steps", state.eval_steps},
                    {"global_step", state.global_step},
                    {"is_hyper_param_search", false},
                    {"is_local_process_zero", true},
                    {"is_world_process_zero", true},
                    {"log_history", history},
                    {"logging_steps", state.logging_steps},
                    {"max_steps", state.max_steps},
                    {"num_input_tokens_seen", state.num_input_tokens_seen},
                    {"num_train_epochs", state.num_train_epochs},
                    {"save_steps", state.save_steps},
                    {"stateful_callbacks", callbacks},
                    {"total_flos", state.total_flos},
                    {"train_batch_size", state.train_batch_size},
                    {"trial_name", nullptr},
                    {"trial_params", nullptr}};
  return out.dump(2, ' ', /*ensure_ascii=*/true) + "\n";
}

const std::string& LogHistoryText::of(const std::vector<LogEntry>& history) {
  static const std::string kBegin = "{\"log_history\": [", kEnd = "]}";
  TESSERA_CHECK(history.size() >= num_entries_, "{} entries after {}", history.size(), num_entries_);
  if (text_.empty()) {
    text_ = kBegin;
  } else {
    text_.resize(text_.size() - kEnd.size());
  }
  for (; num_entries_ < history.size(); ++num_entries_) {
    if (num_entries_ > 0) text_ += ",";
    text_ += entry_json(history[num_entries_]).dump();
  }
  return text_ += kEnd;
}

std::vector<LogEntry> parse_log_history(const std::string& text, const std::string& origin) {
  const Json state = parse_json(text, origin);
  std::vector<LogEntry> entries;
  for (const JsonNode& fields : JsonNode(state, origin)["log_history"].list()) {
    LogEntry entry;
    entry.epoch = fields["epoch"].number();
    entry.step = fields["step"].integer();
    for (const auto& [name, value] : fields.object().items()) {
      if (name == "epoch" || name == "step") continue;
      // JSON has no other spelling for a non-finite value.
      if (value.is_null()) {
        entry.values.emplace_back(name, std::nan(""));
      } else if (value.is_number_integer()) {
        entry.values.emplace_back(name, value.get<int64_t>());
      } else if (value.is_number_float()) {
        entry.values.emplace_back(name, value.get<double>());
      } else {
        fields[name].expected("a number");
      }
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace tessera
