// A run elsewhere, as the lines of its metrics.jsonl and events.jsonl tell it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "report/run_progress.h"

namespace tessera {

// Fields that are missing or of another type count as not known: a run may be of another version.
class WatchedRun {
 public:
  // A line of either file; lines that are neither a step nor an event are ignored.
  void add(const nlohmann::ordered_json& record);
  // What follows begins anew: the run was resumed, or another one has begun. News that were taken are not
  // told again.
  void restart();

  bool has_begun() const { return meter_.progress().step > 0 || has_started_; }
  bool has_finished() const { return finish_.has_value(); }

  // Lines about what has happened besides steps since the last call, oldest first: the start, log entries,
  // evaluations, checkpoints, warnings.
  std::vector<std::string> take_news();

  // The run `age_s` after its last step: the time left is as much shorter. A run without a step for much
  // longer than a step takes says so.
  RunProgress progress(double age_s) const;
  bool is_stale(double age_s) const;
  // At the end of the run.
  std::optional<TrainSummary> summary() const;
  int num_ranks() const { return num_ranks_; }
  int num_nodes() const { return num_nodes_; }
  // State, step and speed as an object, with the last evaluation and checkpoint, and the summary at the end.
  nlohmann::ordered_json json(double age_s) const;

 private:
  void add_step(const nlohmann::ordered_json& line);
  void add_event(const std::string& name, const nlohmann::ordered_json& event);
  void tell(const nlohmann::ordered_json& event, std::string line);

  bool has_started_ = false;
  ProgressMeter meter_;
  double step_time_s_ = 0;
  int num_ranks_ = 1, num_nodes_ = 1;
  std::optional<nlohmann::ordered_json> evaluation_, checkpoint_, finish_;

  std::vector<std::string> news_;
  double last_told_ = 0;  // time of the last event among the news
};

}  // namespace tessera
