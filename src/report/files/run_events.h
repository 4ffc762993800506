// Events of a run besides its steps, as JSON lines: events.jsonl, and the live page.
#pragma once

#include <filesystem>
#include <string>

#include "report/files/line_file.h"
#include "report/observer.h"
#include "settings/run_settings.h"

namespace tessera {

// Turns every call but on_step() and those about progress into a line of JSON, without its newline, with at
// least "event", "time" (seconds since 1970) and "step" (the last one finished, or the one of a checkpoint):
//   start              the plan, where it runs, how often it was restarted, and the arguments of the run
//   resume             folder, or nodes whose memory the state came from; differences
//   memory             plan and measurement, as memory.json
//   log, evaluation    the entry of log_history
//   checkpoint         folder, bytes, shared_bytes, write_s, stall_s
//   checkpoint_failed  folder, message
//   warning            message
//   error              message; the run ended with it
//   finish             the summary of the run, with its times and the hint for speed; stop_signal is 0 if it
//                      ran to completion
class RunEvents : public TrainObserver {
 public:
  explicit RunEvents(const RunSpec& spec);

  void on_plan(const RunPlan& plan) override;
  void on_resume(const std::filesystem::path& folder, int64_t step, const std::string& differences) override;
  void on_resume_from_memory(const std::string& nodes, int64_t step, const std::string& differences) override;
  void on_memory(const MemoryPlan& plan, const MeasuredMemory& measured) override;
  void on_step(const StepMetrics& metrics) override { step_ = metrics.step; }
  void on_log(const LogEntry& entry) override;
  void on_checkpoint(const CheckpointUse& checkpoint) override;
  void on_checkpoint_failed(const std::filesystem::path& folder, const std::string& message) override;
  void on_warning(const std::string& message) override;
  void on_error(const std::string& message) override;
  void on_finish(const TrainSummary& summary) override;

 protected:
  virtual void write_line(const std::string& line) = 0;

 private:
  std::string arguments_json_;
  int64_t num_restarts_;
  int64_t step_ = 0;
};

class EventsFile final : public RunEvents {
 public:
  // See LineFile.
  EventsFile(const RunSpec& spec, const std::filesystem::path& path, int64_t keep)
      : RunEvents(spec), file_(path, keep) {}

 private:
  void write_line(const std::string& line) override { file_.write(line); }

  LineFile file_;
};

}  // namespace tessera
