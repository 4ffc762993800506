// Whether a run makes progress, for /healthz and /readyz.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "comm/ranks/rank_position.h"
#include "report/observer.h"

namespace tessera {

// For RunPhase (report/run_phase.h).
inline constexpr double kRunPhaseLimit_s = 3600;

class RunHealth : public TrainObserver {
 public:
  using Seconds = std::function<double()>;  // a clock that only grows

  // A step is overdue after `timeout_s`; 0: after ten minutes or ten times the median of the last steps,
  // whichever is longer. `position` says what this rank is doing and must outlive this.
  RunHealth(const RankPosition& position, double timeout_s, Seconds clock = steady_seconds);

  bool is_for_every_rank() const override { return true; }
  void on_progress(const std::string& what, double fraction) override;
  void on_loading(double fraction, double bytes_per_second) override;
  void on_output_folder() override;
  void on_step(const StepMetrics& metrics) override;
  void on_evaluation_progress(double fraction) override;
  void on_evaluation(const std::string& set, const EvalResult& result) override;
  void on_checkpoint(const CheckpointUse& checkpoint) override;

  struct Report {
    int64_t step = 0;           // the last one finished
    bool has_step = false;      // one was finished in this process
    double step_age_s = 0;      // since then; since the start if there was none
    double progress_age_s = 0;  // since anything was heard
    double limit_s = 0;         // of progress_age_s
    std::string phase;          // "forward", "evaluation"
    bool is_healthy() const { return progress_age_s <= limit_s; }
    std::string json() const;
  };
  // Any thread may ask.
  Report report() const;

  static double steady_seconds();

 private:
  void note_progress();
  double step_limit_s() const;  // call with the mutex held

  const RankPosition& position_;
  const double timeout_s_;
  const Seconds clock_;
  mutable std::mutex mutex_;
  mutable double run_phase_time_;  // when report() last found work besides steps
  int64_t step_ = 0;
  bool has_step_ = false;
  double step_time_;             // when the last step was finished
  double progress_time_;         // when anything was
  std::deque<double> recent_s_;  // times of the last steps
};

}  // namespace tessera
