// log_history of a run, with the entries of Hugging Face's Trainer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "report/observer.h"
#include "report/progress.h"
#include "report/trainer_state.h"

namespace tessera {

// Counts the loss of a step for the next entry and for the mean of the run; not of one that was skipped. A
// step without a target has none. For such a step Hugging Face's Trainer (logging_nan_inf_filter) adds the
// sum since the last entry, divided by the steps since then and this one, once for every micro-batch.
void count_loss(const StepMetrics& step, Progress* progress);

class RunLog {
 public:
  // Entries have the number of input tokens if `counts_tokens`. `observer` gets each one; must outlive
  // this.
  RunLog(bool counts_tokens, TrainObserver& observer) : counts_tokens_(counts_tokens), observer_(observer) {}

  void restore(std::vector<LogEntry> history) { history_ = std::move(history); }
  const std::vector<LogEntry>& history() const { return history_; }
  // See LogHistoryText::of().
  const std::string& text() { return text_.of(history_); }

  // Adds an entry for the step that the run has come to.
  void add(LogEntry entry, const Progress& progress);
  // Adds the mean loss since the last such entry, if there has been a step.
  void add_training(const StepMetrics& last_step, Progress* progress);

 private:
  bool counts_tokens_;
  TrainObserver& observer_;
  std::vector<LogEntry> history_;
  LogHistoryText text_;
};

}  // namespace tessera
