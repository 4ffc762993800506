// A training run on the terminal: the plan, a line with its progress, Hugging Face's log lines, the loss
// curve and a closing table.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/clock.h"
#include "cli/terminal/closing_table.h"
#include "cli/terminal/progress_line.h"
#include "cli/terminal/terminal.h"
#include "cli/terminal/text_plot.h"
#include "report/observer.h"

namespace tessera {

struct TerminalOptions {
  // A line that is redrawn in place, if error_shows_status(); otherwise lines every ten seconds.
  bool bar = true;
  // Nothing at all.
  bool quiet = false;
  // Tells the user how to resume the run if it is interrupted (describe_resuming).
  std::string resuming = {};
};

// Results go to standard output; transient information (progress, log messages) goes to standard error.
class TerminalReport : public TrainObserver {
 public:
  explicit TerminalReport(TerminalOptions options);

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
  void on_evaluation(const std::string& set, const EvalResult& result) override;
  void on_checkpoint(const CheckpointUse& checkpoint) override;
  void on_checkpoint_failed(const std::filesystem::path& folder, const std::string& message) override;
  void on_finish(const TrainSummary& summary) override;

 private:
  void print_plan(const RunPlan& plan) const;

  TerminalOptions options_;
  bool bar_;
  StatusLine status_;
  ProgressMeter meter_;
  ClosingInputs closing_;
  Stopwatch since_step_;
  std::chrono::steady_clock::time_point last_line_;
  PlotSeries training_loss_{"training loss", {}, true};
  PlotSeries evaluation_loss_{"validation loss", {}, false};
  std::string shown_set_;
};

}  // namespace tessera
