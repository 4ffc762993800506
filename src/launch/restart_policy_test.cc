#include "launch/restart_policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

struct EndOfStart {
  const char* what;
  LaunchResult end;
  Restart fixed;        // --nnodes 2
  Restart restarts;     // --nnodes 2 --max_restarts 2, one of them used
  Restart elastic;      // --nnodes 2:3
  Restart single_node;  // --max_restarts 2, one of them used
};

TEST(RestartPolicy, DependsOnHowTheStartEnded) {
  const auto no = Restart::kNo;
  const auto counted = Restart::kCounted;
  const auto free = Restart::kFree;
  std::vector<EndOfStart> ends = {
      {"done", {}, no, no, no, no},
      {"a rank was killed, or failed", {.exit_code = 75, .error = {}}, no, counted, no, counted},
      {"disk", {.exit_code = 74, .error = {}}, no, counted, no, counted},
      {"peers", {.exit_code = 75, .error = {}, .is_disruption = true}, no, free, free, free},
      {"SIGTERM here", {.signal = 15, .error = {}, .was_told_to_end = true}, no, no, no, no},
      {"SIGTERM elsewhere", {.signal = 15, .error = {}}, no, free, free, no},
      {"SIGINT elsewhere", {.signal = 2, .error = {}}, no, no, no, no},
      {"no store",
       {.exit_code = 75, .error = {}, .is_disruption = true, .has_lost_store = true},
       no,
       no,
       no,
       no},
      {"failed at its end", {.exit_code = 75, .error = {}, .was_told_to_end = true}, no, no, no, no},
  };
  for (const int code : {64, 65, 66, 70, 78, 79}) {
    ends.push_back({"repeats itself", {.exit_code = code, .error = {}}, no, no, no, no});
    ends.push_back(
        {"repeats itself", {.exit_code = code, .error = {}, .is_disruption = true}, no, no, no, no});
  }
  const auto plan_of = [](int min_nodes, int max_nodes, int max_restarts) {
    LaunchPlan plan;
    plan.min_nodes = min_nodes;
    plan.max_nodes = max_nodes;
    plan.max_restarts = max_restarts;
    return plan;
  };
  for (const EndOfStart& each : ends) {
    SCOPED_TRACE(testing::Message() << each.what << ", exit code " << each.end.exit_code);
    EXPECT_EQ(restart_after(each.end, plan_of(2, 2, 0), 0, 1), each.fixed);
    EXPECT_EQ(restart_after(each.end, plan_of(2, 2, 2), 1, 1), each.restarts);
    EXPECT_EQ(restart_after(each.end, plan_of(2, 3, 0), 0, 1), each.elastic);
    EXPECT_EQ(restart_after(each.end, plan_of(1, 1, 2), 1, 1), each.single_node);
  }
  const LaunchResult killed = {.exit_code = 75, .error = {}};
  EXPECT_EQ(restart_after(killed, plan_of(2, 2, 2), 2, 0), no) << "all restarts are used up";
  EXPECT_EQ(restart_after(killed, plan_of(2, 2, 2), 1, 9), counted);
  const LaunchResult silent = {.exit_code = 75, .error = {}, .is_disruption = true};
  for (const int max_idle_restarts : {0, 3, 100}) {
    LaunchPlan plan = plan_of(1, 1, 2);
    plan.max_idle_restarts = max_idle_restarts;
    EXPECT_EQ(restart_after(silent, plan, 0, max_idle_restarts), free);
    EXPECT_EQ(restart_after(silent, plan, 0, max_idle_restarts + 1), no) << "it makes no progress";
  }
  const LaunchResult evicted = {.signal = 15, .error = {}};
  EXPECT_EQ(restart_after(evicted, plan_of(2, 3, 0), 0, 9), free);
}

}  // namespace
}  // namespace tessera
