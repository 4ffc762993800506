#include "launch/job/rank_environment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "comm/ranks/launch_variables.h"

namespace tessera {

Variables rank_variables(const LaunchPlan& plan, const RankStart& start, const Environment& environment) {
  const int rank = plan.first_rank() + start.local_rank;
  const auto number = [](auto value) { return fmt::format("{}", value); };
  const bool has_store = plan.world_size() > 1;
  Variables variables = {
      {"RANK", number(rank)},
      {"WORLD_SIZE", number(plan.world_size())},
      {"LOCAL_RANK", number(start.local_rank)},
      {"LOCAL_WORLD_SIZE", number(plan.local_world_size)},
      {"GROUP_RANK", number(plan.node_rank)},
      {"GROUP_WORLD_SIZE", number(plan.num_nodes)},
      {"ROLE_NAME", plan.role},
      {"ROLE_RANK", number(rank)},
      {"ROLE_WORLD_SIZE", number(plan.world_size())},
      {"MASTER_ADDR", plan.master_addr},
      {"MASTER_PORT", number(start.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", number(start.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", number(plan.max_restarts)},
      {"TORCHELASTIC_RUN_ID", plan.run_id},
      // The store is none of torch.distributed's kind: a program serves its own.
      {"TORCHELASTIC_USE_AGENT_STORE", has_store && plan.is_tessera ? "True" : "False"},
      {"TORCHELASTIC_ERROR_FILE", start.error_file},
      {"TESSERA_AGENT_STORE", has_store ? "1" : "0"},
      {kStorePortVariable, number(start.store_port)},
      {kRendezvousTimeoutVariable, number(plan.rendezvous_timeout.count() / 1000)},
      {kHeartbeatTimeoutVariable, number(plan.heartbeat_timeout.count())},
      {kSecretVariable, plan.secret},
      {kPositionVariable, start.position_file},
      {kLaunchIdVariable, plan.launch_id},
      {kProgressFileVariable, start.progress_file},
      {kTerminationGraceVariable, number(static_cast<double>(plan.termination_grace.count()) / 1000)},
      {kAgentPidVariable, number(getpid())},
      {kResumeCommandVariable, plan.resume_command},
      {kSnapshotSlotsVariable, fmt::format("{}", fmt::join(start.snapshot_slots, ","))},
  };
  // A restarted run resumes from its last checkpoint, if it has one.
  if (start.restart_count > 0) variables.emplace_back(kResumeVariable, "auto");
  if (environment("OMP_NUM_THREADS").value_or("").empty()) {
    const RankProcessors& processors = plan.processors.at(static_cast<size_t>(start.local_rank));
    variables.emplace_back("OMP_NUM_THREADS", number(processors.num_threads));
    variables.emplace_back(kProcessorShareVariable, number(processors.num_processors));
  }
  return variables;
}

std::vector<std::string> merged_environment(const char* const* inherited, const Variables& variables) {
  std::vector<std::string> merged;
  for (; *inherited != nullptr; ++inherited) {
    const std::string_view entry = *inherited;
    const std::string_view name = entry.substr(0, entry.find('='));
    const bool replaced =
        std::any_of(variables.begin(), variables.end(), [&](const auto& v) { return v.first == name; });
    if (!replaced) merged.emplace_back(entry);
  }
  for (const auto& [name, value] : variables) merged.push_back(name + "=" + value);
  return merged;
}

}  // namespace tessera
