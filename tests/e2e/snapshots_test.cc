// Jobs that lose processes or a host and resume from the copies of their state in memory
// (--peer_snapshot_steps): nothing is saved here, so there is no checkpoint to resume from. Number of seeds:
// TESSERA_SOAK_SEEDS (2), starting at TESSERA_SOAK_FIRST_SEED (1).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string_view>
#include <thread>

#include "e2e/host_job.h"
#include "e2e/tiny_model.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

constexpr auto kRunLimit = 60s;

uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// The steps that the run resumed from, in order.
std::vector<int> resumed_steps(const std::string& text) {
  constexpr std::string_view kBegin = "resumed from step ";
  std::vector<int> steps;
  for (size_t at = text.find(kBegin); at != std::string::npos; at = text.find(kBegin, at)) {
    at += kBegin.size();
    const std::string line = text.substr(at, text.find('\n', at) - at);
    const size_t end = line.find_first_not_of("0123456789");
    if (line.find(" held in memory of node") == end) steps.push_back(std::stoi(line));
  }
  return steps;
}

int lines_of_metrics(const fs::path& output) {
  const std::string lines = read_file(output / "metrics.jsonl");
  return static_cast<int>(std::count(lines.begin(), lines.end(), '\n'));
}

class PeerSnapshots : public testing::Test {
 protected:
  static constexpr int kSteps = 40;

  std::vector<std::string> arguments(const std::string& name, int snapshot_steps,
                                     int max_steps = kSteps) const {
    const std::vector<std::string> all = {"--per_device_train_batch_size",
                                          "1",
                                          "--global_batch_size",
                                          "4",
                                          "--max_steps",
                                          std::to_string(max_steps),
                                          "--num_train_epochs",
                                          "1000000",
                                          "--save_strategy",
                                          "no",
                                          "--measure_peak",
                                          "false",
                                          "--peer_snapshot_steps",
                                          std::to_string(snapshot_steps)};
    return tiny_.train_arguments(name, all);
  }
  fs::path output(const std::string& name) const { return tiny_.folder / name; }

  std::vector<std::string> launch(int ranks, const std::vector<std::string>& command,
                                  const std::vector<std::string>& flags = {"--max_restarts", "9"}) const {
    std::vector<std::string> argv = {tessera_binary(), "launch", "--nproc_per_node", std::to_string(ranks)};
    argv.insert(argv.end(), flags.begin(), flags.end());
    argv.insert(argv.end(), command.begin(), command.end());
    return argv;
  }
  // The weights of an undisturbed run.
  std::string undisturbed(int ranks) const {
    StartedProcess process(launch(ranks, arguments("reference", 0)), StartOptions{});
    EXPECT_TRUE(process.wait(kRunLimit)) << process.err();
    const std::string weights = read_file(output("reference") / "model.safetensors");
    EXPECT_FALSE(weights.empty()) << process.err();
    return weights;
  }
  void expect_finished(const std::string& weights) const {
    EXPECT_EQ(lines_of_metrics(output("out")), kSteps);
    EXPECT_TRUE(read_file(output("out") / "model.safetensors") == weights) << "other weights";
  }

  TinyModel tiny_;
};

TEST_F(PeerSnapshots, KilledRankCostsAStepAndNoCheckpoint) {
  const std::string weights = undisturbed(2);
  StartedProcess process(launch(2, arguments("out", 1)), StartOptions{});
  for (const auto& [rank, step] : {std::pair(1, 7), std::pair(0, 15)}) {
    ASSERT_TRUE(wait_for_steps(output("out"), step, kRunLimit)) << process.err();
    const int done = lines_of_metrics(output("out"));
    const pid_t pid = pid_of_rank(process.pid(), rank);
    ASSERT_NE(pid, 0) << process.err();
    kill(pid, SIGKILL);
    const size_t before = resumed_steps(process.err()).size();
    ASSERT_TRUE(process.wait_for_output(fmt::format("; restart {} of 9", before + 1), kRunLimit))
        << process.err();
    const auto deadline = std::chrono::steady_clock::now() + kRunLimit;
    while (resumed_steps(process.err()).size() == before && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(2ms);
    }
    ASSERT_EQ(resumed_steps(process.err()).size(), before + 1) << process.err();
    EXPECT_GE(resumed_steps(process.err()).back(), done - 1);
  }
  ASSERT_TRUE(process.wait(kRunLimit)) << process.err();
  EXPECT_EQ(process.result().exit_code, 0) << process.err();
  expect_finished(weights);
  EXPECT_FALSE(fs::exists(output("out") / "latest")) << "no checkpoint was there to read";
}

TEST_F(PeerSnapshots, KillsAtAnyMomentLeaveTheWeightsOfTheUndisturbedRun) {
  constexpr int kRanks = 3;
  const std::string weights = undisturbed(kRanks);
  const uint64_t first = number_from_environment("TESSERA_SOAK_FIRST_SEED", 1);
  for (uint64_t seed = first; seed < first + number_from_environment("TESSERA_SOAK_SEEDS", 2); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const int every = 1 + static_cast<int>(random() % 3);
    StartedProcess process(launch(kRanks, arguments("out", every)), StartOptions{});
    int kills = 0;
    // Including while the ranks resume from a copy, or make one.
    for (int step = 5; step < kSteps - 5; step += 5 + static_cast<int>(random() % 10)) {
      ASSERT_TRUE(wait_for_steps(output("out"), step, kRunLimit)) << process.err();
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
      const pid_t pid = pid_of_rank(process.pid(), static_cast<int>(random() % kRanks));
      if (pid == 0) continue;  // between two starts
      kill(pid, SIGKILL);
      ++kills;
    }
    ASSERT_TRUE(process.wait(kRunLimit)) << process.err();
    EXPECT_EQ(process.result().exit_code, 0) << process.err();
    expect_finished(weights);
    EXPECT_GT(kills, 0);
    EXPECT_THAT(process.err(), Not(HasSubstr("what is on disk counts"))) << "the first copy was made at once";
    fs::remove_all(output("out"));
  }
}

TEST_F(PeerSnapshots, AreRefusedWhereNobodyStartsRanksAgain) {
  const std::vector<std::string> command = arguments("out", 1);
  std::vector<std::string> alone = {tessera_binary()};
  alone.insert(alone.end(), command.begin(), command.end());
  for (const std::vector<std::string>& argv : {alone, launch(1, command, {}), launch(2, command, {})}) {
    StartedProcess process(argv, StartOptions{});
    ASSERT_TRUE(process.wait(kRunLimit)) << process.err();
    const ProcessResult result = process.result();
    EXPECT_EQ(result.exit_code, 78) << result.err;
    ASSERT_EQ(result.errors().size(), 1u) << result.err;
    EXPECT_THAT(result.errors()[0], HasSubstr("peer_snapshot_steps: no agent keeps the ranks' memory"));
    EXPECT_FALSE(fs::exists(output("out")));
  }
}

class HostsSnapshots : public PeerSnapshots {
 protected:
  void SetUp() override {
    if (!hosts_.problem().empty()) GTEST_SKIP() << hosts_.problem();
  }

  HostJobOptions options(const std::string& nnodes, const std::string& name, int snapshot_steps,
                         int max_steps = kSteps) {
    return {.num_nodes = 2,
            .ranks_per_node = 2,
            .launch_flags = {"--nnodes", nnodes, "--max_restarts", "3", "--rdzv_conf",
                             "last_call_timeout=0.5", "--rdzv_secret_file", secret_file_},
            .command = arguments(name, snapshot_steps, max_steps)};
  }
  static std::vector<int> wait_for_resumed(HostJob& job, size_t count) {
    const auto deadline = std::chrono::steady_clock::now() + kRunLimit;
    while (resumed_steps(job.agent(0).err()).size() < count && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(2ms);
    }
    return resumed_steps(job.agent(0).err());
  }

  Hosts hosts_{2};
  TemporaryFolder secrets_;
  std::string secret_file_ = secrets_.write("secret", "the secret of this job\n");
};

// The host is lost with everything its agent and ranks had in memory.
TEST_F(HostsSnapshots, LostHostComesBackAndNothingElseChanges) {
  {
    HostJob job(hosts_, options("2", "reference", 0));
    ASSERT_TRUE(job.wait(kRunLimit));
  }
  const std::string weights = read_file(output("reference") / "model.safetensors");
  ASSERT_FALSE(weights.empty());
  HostJob job(hosts_, options("2", "out", 1));
  ASSERT_TRUE(wait_for_steps(output("out"), 10, kRunLimit)) << job.all_output();
  const int done = lines_of_metrics(output("out"));
  job.agent(1).send(SIGKILL);
  ASSERT_TRUE(job.agent(1).wait(kRunLimit));
  job.start(1);
  ASSERT_TRUE(job.wait(kRunLimit));
  for (const int node : {0, 1}) EXPECT_EQ(job.agent(node).result().exit_code, 0) << job.all_output();
  const std::vector<int> resumed = resumed_steps(job.agent(0).err());
  ASSERT_EQ(resumed.size(), 1u) << job.all_output();
  EXPECT_GE(resumed[0], done - 2) << "the copy of the last step may not have been sent";
  EXPECT_THAT(job.agent(0).err(), HasSubstr("held in memory of node 0\n")) << "the other one is new";
  expect_finished(weights);
}

TEST_F(HostsSnapshots, LostHostIsGivenUpAndTheOtherGoesOnWithItsState) {
  HostJob job(hosts_, options("1:2", "out", 2));
  ASSERT_TRUE(wait_for_steps(output("out"), 10, kRunLimit)) << job.all_output();
  const int done = lines_of_metrics(output("out"));
  job.agent(1).send(SIGKILL);
  ASSERT_TRUE(job.agent(0).wait(kRunLimit)) << job.all_output();
  EXPECT_EQ(job.agent(0).result().exit_code, 0) << job.all_output();
  const std::vector<int> resumed = resumed_steps(job.agent(0).err());
  ASSERT_EQ(resumed.size(), 1u) << job.all_output();
  EXPECT_GE(resumed[0], done - 4);
  EXPECT_THAT(job.agent(0).err(), HasSubstr("start 1: this is node 0 of 1"));
  EXPECT_EQ(lines_of_metrics(output("out")), kSteps);
  EXPECT_TRUE(fs::exists(output("out") / "model.safetensors"));
}

// The host comes back while the other one works alone, and receives its part of the state at the next start.
TEST_F(HostsSnapshots, JobGrowsAgainFromMemory) {
  HostJob job(hosts_, options("1:2", "out", 1, 1'000'000));
  ASSERT_TRUE(wait_for_steps(output("out"), 5, kRunLimit)) << job.all_output();
  job.agent(1).send(SIGKILL);
  ASSERT_TRUE(job.agent(1).wait(kRunLimit));
  ASSERT_EQ(wait_for_resumed(job, 1).size(), 1u) << job.all_output();
  job.start(1);
  ASSERT_TRUE(job.agent(1).wait_for_output("the job runs on 1 node", kRunLimit)) << job.all_output();
  // It waits to join; killing a rank causes a new start.
  const int done = lines_of_metrics(output("out"));
  const pid_t pid = pid_of_rank(job.agent(0).pid(), 1);
  ASSERT_NE(pid, 0) << job.all_output();
  kill(pid, SIGKILL);
  const std::vector<int> resumed = wait_for_resumed(job, 2);
  ASSERT_EQ(resumed.size(), 2u) << job.all_output();
  EXPECT_GE(resumed[1], done - 1);
  EXPECT_THAT(job.agent(0).err(), HasSubstr("start 2: this is node 0 of 2"));
  ASSERT_TRUE(wait_for_steps(output("out"), resumed[1] + 3, kRunLimit)) << job.all_output();
  job.agent(0).send(SIGTERM);
  ASSERT_TRUE(job.wait(kRunLimit));
  EXPECT_EQ(job.agent(0).result().signal, SIGTERM) << job.all_output();
}

}  // namespace
}  // namespace tessera
