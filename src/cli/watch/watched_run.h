// A run elsewhere, as the lines of its metrics.jsonl and events.jsonl tell it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/terminal/closing_table.h"
#include "cli/terminal/loss_trend.h"
#include "cli/terminal/progress_line.h"
#include "cli/terminal/recent_steps.h"

namespace tessera {

// Fields that are missing or of another type count as not known: a run may be of another version.
class WatchedRun {
 public:
  // A line of either file; lines that are neither a step nor an event are ignored.
  void add(const nlohmann::ordered_json& record);
  // What follows begins anew: the run was resumed, or another one has begun. News that were taken are not
  // told again.
  void restart();

  bool has_begun() const { return progress_.step > 0 || has_started_; }
  bool has_finished() const { return finish_.has_value(); }

  // Lines about what has happened besides steps since the last call, oldest first: the start, log entries,
  // evaluations, checkpoints, warnings.
  std::vector<std::string> take_news();

  // The run `age_s` after its last step: the time left is as much shorter. A run without a step for much
  // longer than a step takes says so.
  ProgressContents progress(double age_s) const;
  bool is_stale(double age_s) const;
  // The table at the end of the run; "" before.
  std::string closing(int64_t width) const;
  // State, step and speed as an object, with the last evaluation and checkpoint, and the summary at the end.
  nlohmann::ordered_json json(double age_s) const;

 private:
  void add_step(const nlohmann::ordered_json& step);
  void add_event(const std::string& name, const nlohmann::ordered_json& event);
  void tell(const nlohmann::ordered_json& event, std::string line);

  bool has_started_ = false;
  ProgressContents progress_;
  RecentSteps recent_steps_;
  LossTrend trend_;
  double step_time_s_ = 0;
  std::optional<double> peak_tflops_;
  ClosingFacts closing_;
  std::optional<nlohmann::ordered_json> evaluation_, checkpoint_, finish_;

  std::vector<std::string> news_;
  double last_told_ = 0;  // time of the last event among the news
};

// What `finish` of events.jsonl tells.
TrainSummary summary_of(const nlohmann::ordered_json& finish);

}  // namespace tessera
