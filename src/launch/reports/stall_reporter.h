// When the ranks of a start hang or a node is lost, collects where all ranks are and writes a stall report.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launch/job/job_link.h"
#include "launch/job/launch_plan.h"
#include "launch/reports/stall_report.h"

namespace tessera {

class StallReporter {
 public:
  // Arguments passed by reference must outlive this. Reports go to `log_folder`, or if that is "", to where
  // the ranks keep their files.
  StallReporter(const LaunchPlan& plan, const std::filesystem::path& log_folder, int restart_count,
                JobLink& job);

  // Whether a rank or node was silent, lost or timed out on, so that its agent cannot know why.
  bool is_due() const;
  // Call once: describes this node, including a culprit on it, and reports to node 0. `ranks` is their
  // current situation; the activity of a culprit on this node is also logged.
  void look(const std::vector<RankSituation>& ranks);
  // Call when the ranks have ended: node 0, or without it every other node, writes the report. Returns where
  // it is, to be appended to an error message; "" = nowhere.
  std::string conclude();

 private:
  std::string write(std::map<int, nlohmann::json> nodes) const;

  const LaunchPlan& plan_;
  const std::filesystem::path& log_folder_;
  const int restart_count_;
  JobLink& job_;
  const NetworkStatistics network_at_start_;
  nlohmann::json node_;  // null: look() was not called
  std::string folder_;   // where the ranks keep their files
};

}  // namespace tessera
