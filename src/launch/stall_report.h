// The report on a standstill: where every rank of every node is, and what the culprit does. Each node's agent
// describes its own ranks; that of node 0, or without it every agent for itself, makes one report of them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/failure.h"
#include "comm/rank_position.h"
#include "launch/launch_plan.h"
#include "launch/network_statistics.h"

namespace tessera {

struct RankSituation {
  int rank = 0;
  pid_t pid = 0;
  std::string ended;              // "exit code 75", "signal 9 (SIGKILL)"; "" = it is there
  int64_t peak_memory_bytes = 0;  // of one that has ended
  PositionReading position;
};

// What a node says of itself, as JSON: host, memory, network since the agent began, and its ranks. The state
// and memory of ranks that are there are looked up now. `doing` is describe_process() of the culprit where it
// is one of them, or "".
nlohmann::json describe_node(const LaunchPlan& plan, const std::vector<RankSituation>& ranks,
                             const NetworkStatistics& network, const std::string& doing);

// What another node has sent; nothing for what is no such description of that node.
std::optional<nlohmann::json> parse_node_report(const std::string& text, int node);

struct StallReportInputs {
  const LaunchPlan& plan;
  int restart_count = 0;
  Failure verdict;
  std::map<int, nlohmann::json> nodes;        // describe_node(), by node
  std::map<int, std::optional<double>> lost;  // s since a word of the other nodes; nothing: there was none
};

// The whole report. docs/operations.md has its fields.
nlohmann::json make_stall_report(const StallReportInputs& inputs);
// The same to be read by people.
std::string stall_report_text(const nlohmann::json& report);

// Writes stall-START-TIME.txt and .json, or with -nodeN behind it where it is a report of one of several
// nodes alone; returns the first. Error(kIoError).
std::filesystem::path write_stall_report(const std::filesystem::path& folder, const nlohmann::json& report);

}  // namespace tessera
