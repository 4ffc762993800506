// The environment variables that tell a rank who it is.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launch/job/launch_plan.h"

namespace tessera {

// Process id of the agent that started a rank.
inline constexpr const char* kAgentPidVariable = "TESSERA_AGENT_PID";

struct RankStart {
  int local_rank = 0;
  int restart_count = 0;
  int master_port = 0;
  int store_port = 0;
  std::string error_file;
  std::string position_file = {};
  std::vector<int> snapshot_slots = {};  // World::snapshot_slots
  std::string progress_file = {};
};

using Variables = std::vector<std::pair<std::string, std::string>>;

// torchrun's variables, plus Tessera's own. OMP_NUM_THREADS, and kProcessorShareVariable with it, only if
// `environment`, the agent's, does not set it.
Variables rank_variables(const LaunchPlan& plan, const RankStart& start, const Environment& environment);

// The agent's environment as "NAME=value" strings, overridden by these variables.
std::vector<std::string> merged_environment(const char* const* inherited, const Variables& variables);

}  // namespace tessera
