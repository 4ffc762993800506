#include "launch/restart_policy.h"

#include <csignal>

#include "launch/ranks/rank_process.h"

namespace tessera {

bool may_restart(const LaunchPlan& plan) { return plan.is_elastic() || plan.max_restarts > 0; }

Restart restart_after(const LaunchResult& end, const LaunchPlan& plan, int num_failures,
                      int num_idle_starts) {
  if (end.was_told_to_end) return Restart::kNo;
  const bool may_be_free = may_restart(plan);
  if (end.signal != 0) {
    // On a single node only the user stops a rank; Ctrl-C and a closed terminal also come from the user.
    const bool is_eviction = end.signal == SIGTERM && plan.has_meetings();
    return is_eviction && may_be_free ? Restart::kFree : Restart::kNo;
  }
  if (end.has_lost_store || !restart_may_help(end.exit_code)) return Restart::kNo;
  if (end.is_disruption && may_be_free) {
    return num_idle_starts <= plan.max_idle_restarts ? Restart::kFree : Restart::kNo;
  }
  return num_failures < plan.max_restarts ? Restart::kCounted : Restart::kNo;
}

}  // namespace tessera
