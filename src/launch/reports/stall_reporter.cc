#include "launch/reports/stall_reporter.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "launch/reports/process_report.h"

namespace tessera {
namespace {

// For the reports of other nodes: they look 0.4 s after the verdict, and stack traces take time.
constexpr std::chrono::milliseconds kOtherNodes{2000};

}  // namespace

StallReporter::StallReporter(const LaunchPlan& plan, const std::filesystem::path& log_folder,
                             int restart_count, JobLink& job)
    : plan_(plan),
      log_folder_(log_folder),
      restart_count_(restart_count),
      job_(job),
      network_at_start_(read_network_statistics()) {}

bool StallReporter::is_due() const {
  if (plan_.world_size() == 1) return false;
  const std::optional<Failure> verdict = job_.failure();
  return verdict && (verdict->is_disruption || job_.has_lost_store());
}

void StallReporter::look(const std::vector<RankSituation>& ranks) {
  if (!node_.is_null() || !is_due()) return;
  const Failure verdict = *job_.failure();
  std::string doing;
  for (const RankSituation& rank : ranks) {
    if (!rank.position.folder.empty()) folder_ = rank.position.folder;
    if (rank.rank != verdict.rank || !rank.ended.empty()) continue;
    doing = describe_process(rank.pid);
    log_warning("this is what rank {} was doing:\n{}", rank.rank, doing);
  }
  node_ = describe_node(plan_, ranks, read_network_statistics() - network_at_start_, doing);
  job_.hand_in(node_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string StallReporter::conclude() {
  if (node_.is_null()) return "";
  std::map<int, nlohmann::json> nodes = {{plan_.node_rank, node_}};
  if (plan_.node_rank > 0) {
    const std::optional<std::string> place = job_.report_place();
    return place ? *place : write(std::move(nodes));
  }
  for (const auto& [node, text] : job_.node_reports(kOtherNodes)) {
    if (auto report = parse_node_report(text, node)) nodes.emplace(node, std::move(*report));
  }
  std::string place = write(std::move(nodes));
  job_.tell_report_place(place);
  return place;
}

std::string StallReporter::write(std::map<int, nlohmann::json> nodes) const {
  StallReportInputs inputs = {plan_, restart_count_, *job_.failure(), std::move(nodes), {}};
  for (int node = 0; node < plan_.num_nodes; ++node) inputs.lost[node] = job_.silence_s(node);
  const nlohmann::json report = make_stall_report(inputs);
  const std::filesystem::path folder = log_folder_.empty() ? std::filesystem::path(folder_) : log_folder_;
  try {
    if (!folder.empty()) return "; where every rank was: " + write_stall_report(folder, report).string();
  } catch (const Error& error) {
    log_warning("cannot write the stall report: {}", error.what());
  }
  log_warning("where every rank was:\n{}", stall_report_text(report));
  return "";
}

}  // namespace tessera
