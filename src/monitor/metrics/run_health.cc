#include "monitor/metrics/run_health.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/median.h"
#include "report/run_phase.h"

namespace tessera {
namespace {

constexpr double kShortestLimit_s = 600;
constexpr double kTimesMedian = 10;
constexpr size_t kNumRecent = 33;

// Whether Activity::kWork says that no step is being computed.
bool is_run_phase(std::string_view what) {
  return what.empty() || what == kMeetingRanks ||
         std::ranges::find(kRunPhaseNames, what) != kRunPhaseNames.end();
}

}  // namespace

double RunHealth::steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

RunHealth::RunHealth(const RankPosition& position, double timeout_s, Seconds clock)
    : position_(position),
      timeout_s_(timeout_s),
      clock_(std::move(clock)),
      run_phase_time_(clock_()),
      step_time_(run_phase_time_),
      progress_time_(step_time_) {}

void RunHealth::note_progress() {
  const std::lock_guard lock(mutex_);
  progress_time_ = clock_();
}

void RunHealth::on_progress(const std::string&, double) { note_progress(); }
void RunHealth::on_loading(double, double) { note_progress(); }
void RunHealth::on_output_folder() { note_progress(); }
void RunHealth::on_evaluation_progress(double) { note_progress(); }
void RunHealth::on_evaluation(const std::string&, const EvalResult&) { note_progress(); }
void RunHealth::on_checkpoint(const CheckpointUse&) { note_progress(); }

void RunHealth::on_step(const StepMetrics& metrics) {
  const std::lock_guard lock(mutex_);
  step_ = metrics.step;
  has_step_ = true;
  step_time_ = progress_time_ = clock_();
  if (recent_s_.size() == kNumRecent) recent_s_.pop_front();
  recent_s_.push_back(metrics.step_time_s);
}

double RunHealth::step_limit_s() const {
  if (timeout_s_ > 0) return timeout_s_;
  if (recent_s_.empty()) return kRunPhaseLimit_s;  // step times are not known yet
  return std::max(kShortestLimit_s, kTimesMedian * median({recent_s_.begin(), recent_s_.end()}));
}

RunHealth::Report RunHealth::report() const {
  const PositionEntry work = position_.read().at(Activity::kWork);
  const bool is_step = !is_run_phase(work.what);
  const std::lock_guard lock(mutex_);
  const double now = clock_();
  Report report;
  report.step = step_;
  report.has_step = has_step_;
  report.step_age_s = now - step_time_;
  report.limit_s = is_step ? step_limit_s() : std::max(kRunPhaseLimit_s, timeout_s_);
  report.phase = work.what;
  // A step after other work has its whole time limit, even if the end of that work was never reported.
  if (is_step) {
    report.progress_age_s = now - std::max(progress_time_, run_phase_time_);
  } else {
    report.progress_age_s = std::min(now - progress_time_, work.age_s);
    run_phase_time_ = now;
  }
  return report;
}

std::string RunHealth::Report::json() const {
  return nlohmann::ordered_json{{"status", is_healthy() ? "ok" : "stalled"},
                                {"step", step},
                                {"seconds_since_step", step_age_s},
                                {"seconds_since_progress", progress_age_s},
                                {"limit_seconds", limit_s},
                                {"phase", phase}}
             .dump() +
         "\n";
}

}  // namespace tessera
