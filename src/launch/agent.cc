#include "launch/agent.h"

#include "base/log.h"
#include "launch/agent_signals.h"
#include "launch/rank_files.h"
#include "launch/rank_group.h"

namespace tessera {

LaunchResult run_agent(const LaunchPlan& plan) {
  AgentSignals signals;
  const std::filesystem::path log_folder = make_log_folder(plan);
  if (plan.log_dir.empty() && !log_folder.empty())
    log_info("log files of the ranks: {}", log_folder.string());
  for (int restart_count = 0;; ++restart_count) {
    LaunchResult result = RankGroup(plan, log_folder, restart_count, &signals).run();
    const bool again =
        result.signal == 0 && restart_count < plan.max_restarts && restart_may_help(result.exit_code);
    if (!again) return result;
    log_warning("{}; restart {} of {}", result.error, restart_count + 1, plan.max_restarts);
  }
}

}  // namespace tessera
