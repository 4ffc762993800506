#include "cluster/node/core_speed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "platform/cpu.h"

namespace tessera {
namespace {

using testing::HasSubstr;

CoreTrial trial_of(const std::vector<double>& tflops) {
  CoreTrial trial = {
      .instruction_set = "amx_bf16", .cores = {}, .pattern_bytes = 1 << 20, .why_no_bandwidth = ""};
  for (size_t i = 0; i < tflops.size(); ++i) {
    trial.cores.push_back({.cpu = static_cast<int>(i), .tflops = tflops[i], .gb_per_s = 5});
  }
  return trial;
}

const std::vector<NumaNode> kTwoNodes = {{0, {0, 1}, 0}, {1, {2, 3}, 0}};

TEST(CoreSpeed, ThisMachineIsMeasuredOnEveryCore) {
  const CoreTrial trial = measure_cores(0.2);
  std::set<int> cpus;
  for (const CoreResult& core : trial.cores) {
    cpus.insert(core.cpu);
    EXPECT_TRUE(core.product_is_right) << core.cpu;
    EXPECT_FALSE(core.bad_byte) << core.cpu;
    EXPECT_EQ(core.tflops > 0, !trial.instruction_set.empty()) << core.cpu;
    EXPECT_EQ(core.gb_per_s > 0, trial.why_no_bandwidth.empty()) << core.cpu;
  }
  EXPECT_EQ(std::ssize(cpus), cpu_limits().num_cores());
}

TEST(CoreSpeed, WrongProductsNameTheProcessor) {
  CoreTrial trial = trial_of({1, 1, 1, 1});
  EXPECT_EQ(check_products(trial).outcome, CheckOutcome::kOk);
  trial.cores[2].product_is_right = false;
  EXPECT_EQ(check_products(trial).outcome, CheckOutcome::kFailed);
  EXPECT_THAT(check_products(trial).message, HasSubstr("on processor 2"));
}

TEST(CoreSpeed, OneSlowCoreIsFoundAmongItsNeighbours) {
  EXPECT_EQ(check_slow_cores(trial_of({1.0, 0.9, 0.8, 1.0})).outcome, CheckOutcome::kOk);
  const Check check = check_slow_cores(trial_of({1.0, 0.9, 1.0, 0.5}));
  EXPECT_EQ(check.outcome, CheckOutcome::kFailed);
  EXPECT_DOUBLE_EQ(*check.value, 0.5);
  EXPECT_THAT(check.message, HasSubstr("processor 3 reaches 0.5 TFLOPS, the median core 1 (1 slow: 3)"));
  EXPECT_EQ(check_slow_cores(trial_of({1.0})).outcome, CheckOutcome::kSkipped);
}

TEST(CoreSpeed, ASlowNumaNodeIsFoundPerCore) {
  CoreTrial trial = trial_of({1, 1, 1, 1});
  EXPECT_EQ(check_slow_numa_nodes(trial, {}).outcome, CheckOutcome::kSkipped);
  EXPECT_EQ(check_slow_numa_nodes(trial, kTwoNodes).outcome, CheckOutcome::kOk);
  EXPECT_EQ(check_slow_numa_nodes(trial, {{0, {0, 1, 2}, 0}, {1, {3}, 0}}).outcome, CheckOutcome::kOk)
      << "a node with fewer cores moves less";
  trial.cores[2].gb_per_s = trial.cores[3].gb_per_s = 3;
  const Check check = check_slow_numa_nodes(trial, kTwoNodes);
  EXPECT_EQ(check.outcome, CheckOutcome::kFailed);
  EXPECT_THAT(check.message, HasSubstr("node 1 moves 6 GB/s with 2 cores, 0.60 of"));
  trial.why_no_bandwidth = "the CPU limit allows 1 of 4 cores at a time";
  EXPECT_THAT(check_slow_numa_nodes(trial, kTwoNodes).message, HasSubstr("CPU limit"));
}

TEST(CoreSpeed, MemoryThatForgetsFails) {
  CoreTrial trial = trial_of({1, 1});
  EXPECT_EQ(check_memory_pattern(trial).outcome, CheckOutcome::kOk);
  trial.cores[1].bad_byte = 4096;
  EXPECT_EQ(check_memory_pattern(trial).outcome, CheckOutcome::kFailed);
  EXPECT_THAT(check_memory_pattern(trial).message,
              HasSubstr("processor 1 does not keep what is written (byte 4096"));
}

}  // namespace
}  // namespace tessera
