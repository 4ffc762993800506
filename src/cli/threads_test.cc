// Tests how many threads a process starts, depending on the machine, an agent and the user's choice, and what
// doctor reports about it.
#include "cli/threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cli/doctor/doctor_report.h"
#include "fake_machine.h"
#include "launch/job/launch_arguments.h"
#include "launch/job/rank_environment.h"

namespace tessera {
namespace {

using testing::HasSubstr;

Environment environment_of(const std::map<std::string, std::string>& variables) {
  return [variables](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

// The processors and variables that `tessera launch` gives to one rank of a machine, and the threads that
// rank starts.
struct Rank {
  std::map<std::string, std::string> variables;
  PoolThreads threads;
};
Rank launched_rank(const FakeMachine& machine, const std::vector<int>& mask, int num_ranks, int local_rank,
                   const std::map<std::string, std::string>& environment = {}) {
  LaunchArguments arguments;
  FlagTable table;
  declare_launch_flags(&table, &arguments);
  arguments.nproc_per_node = fmt::format("{}", num_ranks);
  arguments.command = {"train"};
  const LaunchPlan plan =
      plan_launch(arguments, table, environment_of(environment), node_processors(machine.root(), mask));
  Rank rank{environment, {}};
  const RankStart start = {.local_rank = local_rank, .error_file = ""};
  for (const auto& [name, value] : rank_variables(plan, start, environment_of(environment))) {
    rank.variables[name] = value;
  }
  const std::vector<int>& cpus = plan.processors[static_cast<size_t>(local_rank)].cpus;
  rank.threads = pool_threads(0, environment_of(rank.variables), cpu_limits(machine.root(), cpus));
  return rank;
}

ThreadCalibration calibration(double speedup) { return {{16, 10}, {32, 10 * speedup}, speedup}; }

TEST(PoolThreads, ALaunchedRankHasAThreadPerCoreOfItsOwn) {
  for (const MachineShape& shape :
       {MachineShape{2, 8, 2}, MachineShape{4, 4, 2}, MachineShape{4, 4, 2, true}}) {
    const FakeMachine machine(shape);
    for (const int num_ranks : {1, 2, 4, 8, 16}) {
      SCOPED_TRACE(testing::Message() << num_ranks << " ranks on " << shape.num_numa_nodes << " NUMA nodes");
      for (int local_rank = 0; local_rank < num_ranks; ++local_rank) {
        const Rank rank = launched_rank(machine, shape.cpus(), num_ranks, local_rank);
        const int num_cores = 16 / num_ranks;
        EXPECT_EQ(rank.threads.num_threads(), num_cores);
        EXPECT_TRUE(rank.threads.choice.is_default) << "what an agent writes is not the user's choice";
        std::vector<int> first_threads;
        for (int c = local_rank * num_cores; c < (local_rank + 1) * num_cores; ++c) {
          first_threads.push_back(shape.cpu(c, 0));
        }
        if (num_cores > 1) {
          EXPECT_EQ(rank.threads.limits.pinned_cpus(num_cores), first_threads);
        }
        EXPECT_FALSE(rank.threads.limits.quota.has_value()) << "there is no limit to share";
        EXPECT_EQ(std::ssize(rank.threads.limits.cpus), 2 * num_cores) << "with their siblings";
        EXPECT_EQ(rank.variables.at("OMP_NUM_THREADS"), fmt::format("{}", num_cores));
        EXPECT_EQ(rank.variables.at("TESSERA_PROCESSOR_SHARE"), fmt::format("{}", 2 * num_cores));
      }
    }
  }
}

TEST(PoolThreads, ALaunchedRankKeepsToItsPartOfAContainer) {
  const FakeMachine machine({2, 8, 2});
  machine.set_cpu_quota(32);
  EXPECT_EQ(launched_rank(machine, MachineShape{2, 8, 2}.cpus(), 2, 1).threads.num_threads(), 8);
  machine.set_cpu_quota(9.5);
  const Rank rank = launched_rank(machine, MachineShape{2, 8, 2}.cpus(), 2, 1);
  EXPECT_EQ(rank.threads.num_threads(), 4);
  EXPECT_EQ(rank.threads.limits.quota, 4) << "not the 9.5 of both";
  EXPECT_FALSE(calibrate_threads(rank.threads.limits).has_value()) << "no time for the siblings";
  // A mask with half a core: cores 0, 1 and 2, the last without its second thread.
  const Rank half = launched_rank(machine, {0, 1, 2, 16, 17}, 3, 2);
  EXPECT_EQ(half.threads.limits.cpus, std::vector<int>{2});
  EXPECT_EQ(half.threads.num_threads(), 1);
}

TEST(PoolThreads, WishesAreHonouredUnderAnAgent) {
  const FakeMachine machine({2, 8, 2});
  const std::vector<int> all = MachineShape{2, 8, 2}.cpus();
  const Rank of_user = launched_rank(machine, all, 2, 0, {{"OMP_NUM_THREADS", "16"}});
  EXPECT_EQ(of_user.variables.count("TESSERA_PROCESSOR_SHARE"), 0u);
  EXPECT_EQ(of_user.threads.num_threads(), 16);
  EXPECT_FALSE(of_user.threads.choice.is_default);
  Rank rank = launched_rank(machine, all, 2, 0);
  rank.variables["OMP_NUM_THREADS"] = "3";  // by a script that the agent started
  const PoolThreads by_script = pool_threads(0, environment_of(rank.variables), rank.threads.limits);
  EXPECT_EQ(by_script.num_threads(), 3);
  EXPECT_FALSE(by_script.choice.is_default);
  EXPECT_FALSE(pool_threads(8, environment_of(rank.variables), rank.threads.limits).choice.is_default);
}

TEST(PoolThreads, AMeasurementOverridesTheDefaultAlone) {
  const FakeMachine machine({1, 16, 2});
  const CpuLimits limits = cpu_limits(machine.root(), MachineShape{1, 16, 2}.cpus());
  PoolThreads threads = pool_threads(0, environment_of({}), limits);
  EXPECT_EQ(threads.num_threads(), 16);
  threads.calibration = calibration(1.09);
  EXPECT_EQ(threads.num_threads(), 16) << "noise";
  threads.calibration = calibration(1.3);
  EXPECT_EQ(threads.num_threads(), 32);
  threads.choice = pool_threads(0, environment_of({{"OMP_NUM_THREADS", "16"}}), limits).choice;
  EXPECT_EQ(threads.num_threads(), 16);
}

std::string row(const PoolThreads& threads, const std::string& name) {
  for (const auto& [row, value] : thread_rows(threads, 32)) {
    if (row == name) return value;
  }
  return "";
}

TEST(DoctorThreads, ShowCoresAndWhatWasMeasured) {
  const FakeMachine machine({1, 16, 2});
  PoolThreads threads =
      pool_threads(0, environment_of({}), cpu_limits(machine.root(), MachineShape{1, 16, 2}.cpus()));
  EXPECT_THAT(row(threads, "hyper-threads"), HasSubstr("not measured"));
  threads.calibration = calibration(0.5);
  EXPECT_EQ(row(threads, "processors"), "32 online, 32 on 16 cores allowed by the affinity mask (0-31)");
  EXPECT_THAT(row(threads, "threads used"), HasSubstr("16, each on its own core"));
  EXPECT_EQ(row(threads, "hyper-threads"),
            "16 threads 10 TFLOPS, 32 threads 5, 0.50 times as fast; not used below 1.10");
  threads.calibration = calibration(1.5);
  EXPECT_THAT(row(threads, "threads used"), HasSubstr("32, each on its own hardware thread"));
  const auto json = threads_json(threads, 32);
  EXPECT_EQ(json.at("cores"), 16);
  EXPECT_EQ(json.at("threads"), 32);
  EXPECT_EQ(json.at("threads_per_core"), 2);
  EXPECT_EQ(json.at("calibration").at("two_per_core").at("tflops"), 15);
  threads.choice.is_default = false;
  EXPECT_THAT(row(threads, "hyper-threads"), HasSubstr("OMP_NUM_THREADS decides"));
  const FakeMachine without({1, 16, 1});
  threads = pool_threads(0, environment_of({}), cpu_limits(without.root(), MachineShape{1, 16, 1}.cpus()));
  EXPECT_EQ(row(threads, "threads used"), "16, each on its own processor; waiting threads spin first");
  EXPECT_EQ(row(threads, "hyper-threads"), "");
  EXPECT_TRUE(threads_json(threads, 16).at("calibration").is_null());
}

}  // namespace
}  // namespace tessera
