// A training run on the terminal: the plan, a progress bar, Hugging Face's log lines, the loss curve and a
// summary.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "cli/terminal/recent_steps.h"
#include "cli/terminal/terminal.h"
#include "cli/terminal/text_plot.h"
#include "train/observer.h"

namespace tessera {

struct BarContents {
  int64_t step = 0;
  int64_t max_steps = 0;
  double loss = 0;
  double tokens_per_second = 0;
  double tflops = 0;
  std::optional<double> mfu;
  std::optional<double> eta_s;  // nullopt: not known yet
};

// "[#####.....] 45/100  loss 3.1416  12,345 tokens/s  2.87 TFLOPS  MFU 0.43  ETA 01:23", at most `width`
// columns. If space runs out, TFLOPS are dropped first, then the bar, then MFU.
std::string progress_bar(const BarContents& progress, int64_t width, bool utf8);

// Results go to standard output; transient information (progress, log messages) goes to standard error.
class TerminalReport : public TrainObserver {
 public:
  // With `bar`, and if error_shows_status(), draws a bar; otherwise prints a line every ten seconds.
  // `resuming` says how to resume the run if it is interrupted (describe_resuming).
  TerminalReport(bool bar, std::string resuming);

  void on_progress(const std::string& what, double fraction) override;
  void on_loading(double fraction, double bytes_per_second) override;
  void on_plan(const RunPlan& plan) override;
  void on_resume(const std::filesystem::path& folder, int64_t step, const std::string& differences) override;
  void on_resume_from_memory(const std::string& nodes, int64_t step, const std::string& differences) override;
  void on_previous_run(const std::filesystem::path& folder) override;
  void on_memory(const MemoryPlan& plan, const MeasuredMemory& measured) override;
  void on_step(const StepMetrics& metrics) override;
  void on_log(const LogEntry& entry) override;
  void on_evaluation_progress(double fraction) override;
  void on_evaluation(const EvalResult& result) override;
  void on_checkpoint(const CheckpointUse& checkpoint) override;
  void on_checkpoint_failed(const std::filesystem::path& folder, const std::string& message) override;
  void on_finish(const TrainSummary& summary) override;

 private:
  void show_step(const StepMetrics& metrics);

  bool bar_;
  std::string resuming_;
  StatusLine status_;
  int64_t max_steps_ = 0;
  int num_ranks_ = 1;
  int num_nodes_ = 1;
  int64_t last_step_ = 0;
  RecentSteps recent_steps_;
  std::optional<double> peak_tflops_;
  std::chrono::steady_clock::time_point last_line_;
  PlotSeries training_loss_{"training loss", {}, true};
  PlotSeries evaluation_loss_{"validation loss", {}, false};
};

}  // namespace tessera
