// Everything a run has reported so far, in the form of Hugging Face's trainer_state.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tessera {

// One report: a training log, an evaluation or the end of the run. Values in the order in which Hugging Face
// prints them; epoch and step belong to every entry.
struct LogEntry {
  using Value = std::variant<int64_t, double>;
  std::vector<std::pair<std::string, Value>> values;
  double epoch = 0;
  int64_t step = 0;
};

// Python's round(value, decimals) except for ties.
double round_decimals(double value, int decimals);

// "{'loss': 2.1048, 'grad_norm': 2.13, 'learning_rate': 4.99e-05, 'epoch': 0.01}": the line Hugging Face's
// Trainer prints, loss rounded to 4 decimals, epoch to 2.
std::string log_line_text(const LogEntry& entry);

// Fields as in Hugging Face's TrainerState.
struct TrainerState {
  int64_t global_step = 0;
  double epoch = 0;
  int64_t max_steps = 0;
  int64_t num_train_epochs = 0;
  int64_t train_batch_size = 0;
  int64_t logging_steps = 500;
  int64_t eval_steps = 500;
  int64_t save_steps = 500;
  int64_t num_input_tokens_seen = 0;
  double total_flos = 0;
  std::optional<double> best_metric;
  std::optional<int64_t> best_global_step;
  std::optional<std::string> best_model_checkpoint;
  // EarlyStoppingCallback, if the run has one.
  struct EarlyStopping {
    int64_t patience;
    double threshold;
    int64_t patience_counter;
  };
  std::optional<EarlyStopping> early_stopping;
  std::vector<LogEntry> log_history;
};

// The text of trainer_state.json: sorted keys, indent 2, trailing newline. `should_save` and
// `should_training_stop` are the fields of TrainerControl at that moment.
std::string trainer_state_json(const TrainerState& state, bool should_save, bool should_training_stop);

// Text of a JSON object with log_history alone, for repeated use: only new entries are converted.
class LogHistoryText {
 public:
  // `history` must begin with the previous call's. The result is valid until the next call.
  const std::string& of(const std::vector<LogEntry>& history);

 private:
  size_t num_entries_ = 0;
  std::string text_;
};

// Parses log_history from such a text; values are in the order of their names. Error(kBadData) names `origin`
// and the entry.
std::vector<LogEntry> parse_log_history(const std::string& text, const std::string& origin);

}  // namespace tessera
