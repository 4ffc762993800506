// The stall report: where every rank of every node is, and what the culprit is doing. Each node's agent
// describes its own ranks; node 0's agent combines them into one report, or without it every agent writes its
// own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/ranks/failure.h"
#include "comm/ranks/rank_position.h"
#include "launch/job/launch_plan.h"
#include "launch/reports/network_statistics.h"

namespace tessera {

struct RankSituation {
  int rank = 0;
  pid_t pid = 0;
  std::string ended;              // "exit code 75", "signal 9 (SIGKILL)"; "" = still running
  int64_t peak_memory_bytes = 0;  // if it has ended
  PositionReading position;
};

// A node's own report as JSON: host, memory, network since the agent started, and its ranks. The state and
// memory of running ranks are looked up now. `doing` is describe_process() of the culprit if it is one of
// them, otherwise "".
nlohmann::json describe_node(const LaunchPlan& plan, const std::vector<RankSituation>& ranks,
                             const NetworkStatistics& network, const std::string& doing);

// Parses a report from another node; nullopt if it is not a valid report of that node.
std::optional<nlohmann::json> parse_node_report(const std::string& text, int node);

struct StallReportInputs {
  const LaunchPlan& plan;
  int restart_count = 0;
  Failure verdict;
  std::map<int, nlohmann::json> nodes;  // describe_node(), by node
  std::map<int, std::optional<double>>
      lost;  // seconds since other nodes were last heard from; nullopt: never
};

// The whole report. Its fields are described in docs/operations.md.
nlohmann::json make_stall_report(const StallReportInputs& inputs);
// The report in human-readable form.
std::string stall_report_text(const nlohmann::json& report);

// Writes stall-START-TIME.txt and .json, with the suffix -nodeN if it covers only one of several nodes;
// returns the path of the first. Error(kIoError).
std::filesystem::path write_stall_report(const std::filesystem::path& folder, const nlohmann::json& report);

}  // namespace tessera
