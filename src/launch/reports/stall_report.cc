#include "launch/reports/stall_report.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <ctime>

#include "base/text.h"
#include "io/file.h"
#include "launch/reports/process_report.h"
#include "platform/memory_info.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

double rounded(double seconds) { return std::round(seconds * 1e3) / 1e3; }

std::string utc_time(const char* format) {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm fields = {};
  gmtime_r(&now, &fields);
  std::array<char, 64> text = {};
  return {text.data(), std::strftime(text.data(), text.size(), format, &fields)};
}

// null if there was none yet.
json describe_work(const PositionEntry& work) {
  if (work.what.empty()) return nullptr;
  return {{"what", work.what},
          {"step", work.number},
          {"layer", work.layer < 0 ? json(nullptr) : json(work.layer)},
          {"since_s", rounded(work.age_s)}};
}

json describe_operation(const PositionEntry& operation) {
  if (operation.what.empty()) return nullptr;
  return {{"what", operation.what},
          {"group", operation.layer < 0 ? json(nullptr) : json(operation.layer)},
          {"number", operation.number},
          {"bytes", operation.bytes},
          {"waits_for_rank", operation.peer < 0 ? json(nullptr) : json(operation.peer)},
          {"is_over", operation.is_over},
          {"since_s", rounded(operation.age_s)}};
}

json describe_rank_situation(const RankSituation& rank) {
  const ProcessState process = rank.ended.empty() ? process_state(rank.pid) : ProcessState{};
  const bool is_there = rank.ended.empty() && process.is_there;
  json object = {{"rank", rank.rank},
                 {"pid", rank.pid},
                 {"state", is_there             ? process.state
                           : rank.ended.empty() ? "ended"
                                                : "ended: " + rank.ended},
                 {"resident_bytes", is_there ? json(process.resident_bytes) : json(nullptr)},
                 {"peak_resident_bytes", is_there ? process.peak_resident_bytes : rank.peak_memory_bytes},
                 {"sent_bytes", rank.position.sent_bytes},
                 {"received_bytes", rank.position.received_bytes}};
  object["work"] = describe_work(rank.position.at(Activity::kWork));
  object["node_operation"] = describe_operation(rank.position.at(Activity::kNode));
  object["network_operation"] = describe_operation(rank.position.at(Activity::kNetwork));
  return object;
}

std::string since(const json& what) {
  return fmt::format("{} {:.1f} s", what.value("is_over", false) ? "over for" : "for",
                     what.at("since_s").get<double>());
}

std::string operation_text(const char* where, const json& operation) {
  if (operation.is_null()) return "";
  std::string text = fmt::format("\n    {}: {}", where, operation.at("what").get<std::string>());
  if (!operation.at("group").is_null())
    text += fmt::format(" of group {}", operation.at("group").get<int64_t>());
  text += fmt::format(", number {}", operation.at("number").get<int64_t>());
  if (operation.at("bytes") > 0) text += ", " + count_of(operation.at("bytes").get<int64_t>(), "byte");
  if (!operation.at("waits_for_rank").is_null()) {
    text += fmt::format(", waits for rank {}", operation.at("waits_for_rank").get<int>());
  }
  return text + ", " + since(operation);
}

std::string rank_text(const json& rank) {
  std::string text = fmt::format("\n  rank {} (process {}): {}", rank.at("rank").get<int>(),
                                 rank.at("pid").get<int64_t>(), rank.at("state").get<std::string>());
  if (!rank.at("resident_bytes").is_null()) {
    text += fmt::format(", {} resident", format_bytes(rank.at("resident_bytes").get<int64_t>()));
  }
  text += fmt::format(", at most {}", format_bytes(rank.at("peak_resident_bytes").get<int64_t>()));
  const json& work = rank.at("work");
  if (work.is_null()) return text + "\n    has not reported a position";
  text +=
      fmt::format("\n    step {}: {}", work.at("step").get<int64_t>(), work.at("what").get<std::string>());
  if (!work.at("layer").is_null()) text += fmt::format(" of layer {}", work.at("layer").get<int64_t>());
  text += ", " + since(work);
  text += operation_text("on the node", rank.at("node_operation"));
  text += operation_text("between nodes", rank.at("network_operation"));
  if (!rank.at("network_operation").is_null()) {
    text += fmt::format("\n    between nodes so far: {} sent, {} received",
                        count_of(rank.at("sent_bytes").get<int64_t>(), "byte"),
                        rank.at("received_bytes").get<int64_t>());
  }
  return text;
}

std::string node_text(const json& node) {
  std::string text = fmt::format("\nnode {}", node.at("node").get<int>());
  if (node.contains("lost")) return text + ": " + node.at("lost").get<std::string>() + "\n";
  const json &memory = node.at("memory"), &network = node.at("network");
  text += fmt::format(" on host {} (agent: process {})", node.at("host").get<std::string>(),
                      node.at("agent_pid").get<int64_t>());
  text +=
      fmt::format("\n  memory: {} of {} available", format_bytes(memory.at("available_bytes").get<int64_t>()),
                  format_bytes(memory.at("total_bytes").get<int64_t>()));
  if (!memory.at("cgroup_limit_bytes").is_null()) {
    text += fmt::format(", {} of the cgroup's {} used",
                        memory.at("cgroup_used_bytes").is_null()
                            ? "?"
                            : format_bytes(memory.at("cgroup_used_bytes").get<int64_t>()),
                        format_bytes(memory.at("cgroup_limit_bytes").get<int64_t>()));
  }
  text += fmt::format(
      "\n  network since the agent started: {} sent, {} received; {} dropped, {} faulty; {} of "
      "{} retransmitted",
      count_of(network.at("sent_bytes").get<int64_t>(), "byte"), network.at("received_bytes").get<int64_t>(),
      count_of(network.at("dropped_packets").get<int64_t>(), "packet"),
      network.at("faulty_packets").get<int64_t>(), network.at("tcp_resent_segments").get<int64_t>(),
      count_of(network.at("tcp_sent_segments").get<int64_t>(), "TCP segment"));
  for (const json& rank : node.at("ranks")) text += rank_text(rank);
  return text + "\n";
}

}  // namespace

json describe_node(const LaunchPlan& plan, const std::vector<RankSituation>& ranks,
                   const NetworkStatistics& network, const std::string& doing) {
  const auto optional = [](const std::optional<int64_t>& value) {
    return value ? json(*value) : json(nullptr);
  };
  const MemoryInfo memory = memory_info();
  json node = {{"node", plan.node_rank},
               {"host", plan.host},
               {"agent_pid", getpid()},
               {"memory",
                {{"total_bytes", memory.total_bytes},
                 {"available_bytes", memory.available_bytes},
                 {"cgroup_limit_bytes", optional(memory.cgroup_limit_bytes)},
                 {"cgroup_used_bytes", optional(memory.cgroup_used_bytes)}}},
               {"network",
                {{"sent_bytes", network.sent_bytes},
                 {"received_bytes", network.received_bytes},
                 {"dropped_packets", network.dropped_packets},
                 {"faulty_packets", network.faulty_packets},
                 {"tcp_sent_segments", network.sent_segments},
                 {"tcp_resent_segments", network.resent_segments}}},
               {"ranks", json::array()}};
  for (const RankSituation& rank : ranks) node["ranks"].push_back(describe_rank_situation(rank));
  if (!doing.empty()) node["culprit_process"] = doing;
  return node;
}

std::optional<json> parse_node_report(const std::string& text, int node) {
  json report = json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    if (report.is_discarded() || report.at("node") != node) return std::nullopt;
    node_text(report);  // throws if anything is missing
    report.value("culprit_process", std::string());
  } catch (const json::exception&) {
    return std::nullopt;
  }
  return report;
}

json make_stall_report(const StallReportInputs& inputs) {
  const LaunchPlan& plan = inputs.plan;
  json report = {{"format", "tessera stall report"},
                 {"version", 1},
                 {"job", plan.run_id},
                 {"start", inputs.restart_count},
                 {"time", utc_time("%Y-%m-%dT%H:%M:%SZ")},
                 {"written_by", {{"node", plan.node_rank}, {"host", plan.host}}},
                 {"cause", inputs.verdict.message},
                 {"culprit_rank", inputs.verdict.rank < 0 ? json(nullptr) : json(inputs.verdict.rank)},
                 {"culprit_process", nullptr},
                 {"num_nodes", plan.num_nodes},
                 {"ranks_per_node", plan.local_world_size},
                 {"nodes", json::array()}};
  for (int node = 0; node < plan.num_nodes; ++node) {
    if (const auto found = inputs.nodes.find(node); found != inputs.nodes.end()) {
      json part = found->second;
      if (part.contains("culprit_process")) {
        if (inputs.verdict.rank >= 0) report["culprit_process"] = part["culprit_process"];
        part.erase("culprit_process");
      }
      report["nodes"].push_back(std::move(part));
      continue;
    }
    const auto silence = inputs.lost.find(node);
    const bool is_known = silence != inputs.lost.end() && silence->second;
    report["nodes"].push_back(
        {{"node", node},
         {"lost", is_known ? fmt::format("last heard from {:.1f} s ago", *silence->second)
                           : std::string("never heard from")},
         {"silent_s", is_known ? json(rounded(*silence->second)) : json(nullptr)}});
  }
  return report;
}

std::string stall_report_text(const json& report) {
  std::string text = fmt::format(
      "{}\n\njob '{}', start {}, {}; reported by node {} on host {}\n", report["cause"].get<std::string>(),
      report["job"].get<std::string>(), report["start"].get<int>(), report["time"].get<std::string>(),
      report["written_by"]["node"].get<int>(), report["written_by"]["host"].get<std::string>());
  for (const json& node : report["nodes"]) text += node_text(node);
  if (!report["culprit_process"].is_null()) {
    text += fmt::format("\nwhat rank {} was doing:\n{}\n", report["culprit_rank"].get<int>(),
                        report["culprit_process"].get<std::string>());
  }
  return text;
}

fs::path write_stall_report(const fs::path& folder, const json& report) {
  create_folder(folder);
  const int node = report["written_by"]["node"].get<int>();
  const std::string stem =
      fmt::format("stall-{}-{}{}", report["start"].get<int>(), utc_time("%Y%m%dT%H%M%SZ"),
                  node == 0 ? "" : fmt::format("-node{}", node));
  write_text_file(folder / (stem + ".json"),
                  report.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
  fs::path path = folder / (stem + ".txt");
  write_text_file(path, stall_report_text(report));
  return path;
}

}  // namespace tessera
