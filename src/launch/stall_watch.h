// When the ranks of a start stand still, or a node is lost: gathers where all of them are, and writes it
// down.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launch/job_link.h"
#include "launch/launch_plan.h"
#include "launch/stall_report.h"

namespace tessera {

class StallWatch {
 public:
  // What is passed by reference must outlive this. Reports go to `log_folder`, or if that is "" to where the
  // ranks keep their files.
  StallWatch(const LaunchPlan& plan, const std::filesystem::path& log_folder, int restart_count,
             JobLink& job);

  // A rank or node was silent, waited for in vain or lost, and its agent cannot know why.
  bool is_due() const;
  // Once: describes this node, its culprit included, and tells node 0. `ranks` are as they are now; the log
  // shows what a culprit of this node does.
  void look(const std::vector<RankSituation>& ranks);
  // When the ranks have ended: node 0, or without it every other, writes the report. Behind an error message:
  // where it is; "" = nowhere.
  std::string conclude();

 private:
  std::string write(std::map<int, nlohmann::json> nodes) const;

  const LaunchPlan& plan_;
  const std::filesystem::path& log_folder_;
  const int restart_count_;
  JobLink& job_;
  const NetworkStatistics network_at_start_;
  nlohmann::json node_;  // null: has not looked
  std::string folder_;   // of the ranks
};

}  // namespace tessera
