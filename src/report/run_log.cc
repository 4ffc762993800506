#include "report/run_log.h"

#include <cmath>

namespace tessera {

void count_loss(const StepMetrics& step, Progress* progress) {
  if (step.skipped) return;
  double loss = step.loss;
  if (step.num_target_tokens == 0) {
    const double share = 1.0 / static_cast<double>(1 + progress->losses_since_log);
    loss = progress->loss_since_log * (std::pow(1 + share, step.num_micro_batches) - 1);
  }
  progress->loss_since_log += loss;
  progress->total_loss += loss;
  ++progress->losses_since_log;
}

void RunLog::add(LogEntry entry, const Progress& progress) {
  entry.epoch = progress.epoch;
  entry.step = progress.step;
  if (counts_tokens_) entry.values.emplace_back("num_input_tokens_seen", progress.num_input_tokens_seen);
  observer_.on_log(history_.emplace_back(std::move(entry)));
}

void RunLog::add_training(const StepMetrics& last_step, Progress* progress) {
  if (progress->losses_since_log == 0) return;
  const auto num_losses = static_cast<double>(std::exchange(progress->losses_since_log, 0));
  LogEntry entry;
  entry.values = {{"loss", std::exchange(progress->loss_since_log, 0) / num_losses},
                  {"grad_norm", last_step.grad_norm},
                  {"learning_rate", last_step.learning_rate}};
  add(std::move(entry), *progress);
}

}  // namespace tessera
