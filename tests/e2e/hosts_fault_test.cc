// Every fault on two hosts ends the job everywhere, in time, with one error that names the culprit.
#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "e2e/hosts_fixture.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

class HostsFault : public HostsFixture {};

TEST_F(HostsFault, KilledRankIsNamedEverywhere) {
  for (const int victim : {0, 3}) {
    HostJob job(hosts_, {.ranks_per_node = 2, .command = endless()});
    ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
    job.send(victim, SIGKILL);
    ASSERT_TRUE(job.wait(kSoon));
    for (const int node : {0, 1}) {
      expect_error(
          job, node, 75,
          fmt::format("rank {} on host host{} was killed by signal 9 (SIGKILL)", victim, victim / 2));
    }
    fs::remove_all(output());
  }
}

// The hosts share every row.
TEST_F(HostsFault, RankThatSharesRowsIsNamedEverywhere) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    HostJob job(hosts_, {.command = endless({"--context_parallel_size", "2"})});
    ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
    job.send(1, signal);
    ASSERT_TRUE(job.wait(kSilence + kSoon));
    for (const int node : {0, 1}) {
      expect_error(job, node, 75,
                   StartsWith(signal == SIGKILL ? "rank 1 on host host1 was killed by signal 9 (SIGKILL)"
                                                : "rank 1 on host host1: silent for 5.0 s"));
    }
    fs::remove_all(output());
  }
}

// Killed at various points between its start and the first step.
TEST_F(HostsFault, RankKilledInStartUpIsNamedEverywhere) {
  for (const auto delay : {0ms, 20ms, 60ms, 120ms, 250ms}) {
    SCOPED_TRACE(delay.count());
    HostJob job(hosts_, {.ranks_per_node = 2, .command = endless()});
    ASSERT_TRUE(wait_for_rank(job, 3));
    std::this_thread::sleep_for(delay);
    job.send(3, SIGKILL);
    ASSERT_TRUE(job.wait(kSoon));
    for (const int node : {0, 1}) {
      expect_error(job, node, 75, "rank 3 on host host1 was killed by signal 9 (SIGKILL)");
    }
  }
}

TEST_F(HostsFault, RankKilledWhileItSavesLeavesCompleteCheckpoints) {
  HostJob job(hosts_, {.command = endless({"--save_steps", "1", "--save_total_limit", "3"})});
  ASSERT_TRUE(wait_for_steps(output(), 5, kStart)) << job.all_output();
  job.send(0, SIGKILL);
  ASSERT_TRUE(job.wait(kSoon));
  for (const int node : {0, 1}) {
    expect_error(job, node, 75, "rank 0 on host host0 was killed by signal 9 (SIGKILL)");
  }
  int num_checkpoints = 0;
  for (const auto& entry : fs::directory_iterator(output())) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("checkpoint-") || name.find('.') != std::string::npos) continue;
    ++num_checkpoints;
    run_well({"inspect", entry.path().string()});
  }
  EXPECT_GE(num_checkpoints, 1);
}

TEST_F(HostsFault, KilledAgentIsNamedAndItsRanksGo) {
  for (const int victim : {0, 1}) {
    HostJob job(hosts_, {.ranks_per_node = 2, .command = endless()});
    ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
    const pid_t orphan = job.rank(2 * victim + 1);
    job.agent(victim).send(SIGKILL);
    ASSERT_TRUE(job.wait(kSoon));
    expect_error(job, 1 - victim, 75,
                 victim == 0 ? testing::Matcher<std::string>(MatchesRegex(
                                   "the store at 10.77.0.1:29500 .agent of node 0. ended without a word.*"))
                             : MatchesRegex("the agent of node 1 on host host1 ended without a word.*"));
    EXPECT_TRUE(is_gone(orphan));
    fs::remove_all(output());
  }
}

TEST_F(HostsFault, StoppedRankIsNamedAfterTheSilence) {
  HostJob job(hosts_, {.ranks_per_node = 2, .command = endless()});
  ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
  const auto begin = Clock::now();
  job.send(3, SIGSTOP);
  ASSERT_TRUE(job.wait(kSilence + kSoon));
  EXPECT_GE(Clock::now() - begin, kSilence - 500ms);  // the last sign of life was a moment earlier
  for (const int node : {0, 1})
    expect_error(job, node, 75, StartsWith("rank 3 on host host1: silent for 5.0 s; where every rank was: "));
  EXPECT_THAT(job.agent(1).err(), AllOf(HasSubstr("this is what rank 3 was doing"), HasSubstr("): stopped")));
  EXPECT_THAT(job.agent(1).err(), AnyOf(HasSubstr("tessera::Trainer::"), HasSubstr("in generated code"),
                                        HasSubstr("stacks are incomplete")));
  EXPECT_THAT(job.agent(0).err(), Not(HasSubstr("was doing")));
}

TEST_F(HostsFault, PauseShorterThanTheSilenceChangesNothing) {
  std::vector<std::string> weights;
  for (const bool disturbed : {false, true}) {
    HostJob job(hosts_, {.ranks_per_node = 2,
                         .command = tiny_->train_arguments(
                             "out", {"--per_device_train_batch_size", "1", "--max_steps", "200"})});
    if (disturbed) {
      ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
      job.send(2, SIGSTOP);
      std::this_thread::sleep_for(3s);
      EXPECT_FALSE(job.agent(0).has_ended());
      job.send(2, SIGCONT);
    }
    ASSERT_TRUE(job.wait(kStart));
    for (const int node : {0, 1}) EXPECT_EQ(job.agent(node).result().exit_code, 0) << job.all_output();
    weights.push_back(read_file(output() / "model.safetensors"));
    fs::remove_all(output());
  }
  EXPECT_FALSE(weights[0].empty());
  EXPECT_TRUE(weights[0] == weights[1]);
}

// One of several pods gets SIGTERM: the job saves, and all its processes end by the signal.
TEST_F(HostsFault, SigtermOfOneAgentSavesAndEndsAll) {
  for (const int node : {0, 1}) {
    HostJob job(hosts_, {.ranks_per_node = 2, .command = endless()});
    ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
    job.agent(node).send(SIGTERM);
    ASSERT_TRUE(job.wait(10s));
    for (const int each : {0, 1}) {
      const ProcessResult result = job.agent(each).result();
      EXPECT_EQ(result.signal, SIGTERM) << "node " << each << " exit code " << result.exit_code << result.err;
      EXPECT_EQ(result.errors().size(), 0u) << result.err;
    }
    int num_checkpoints = 0;
    for (const auto& entry : fs::directory_iterator(output())) {
      num_checkpoints += entry.path().filename().string().starts_with("checkpoint-") ? 1 : 0;
    }
    EXPECT_EQ(num_checkpoints, 1);
    fs::remove_all(output());
  }
}

// Two steps with rows of one word, then one with rows of 128 tokens, for which there is not enough time. Node
// 0 learns of the signal from the other node's rank.
TEST_F(HostsFault, SigtermGivesUpAStepThatWouldTakeTooLong) {
  constexpr int64_t kRowsPerStep = 16'000;
  std::string long_row;
  for (int i = 0; i < 64; ++i) long_row += "small layer ";
  std::string text;
  for (int64_t row = 0; row < 2 * kRowsPerStep; ++row) text += "a\n";
  for (int64_t row = 0; row < kRowsPerStep; ++row) text += long_row + "\n";
  const std::vector<std::string> command = {"train",
                                            "--model",
                                            tiny_->model,
                                            "--dataset",
                                            tiny_->folder.write("rows.txt", text),
                                            "--output_dir",
                                            output(),
                                            "--text_per_line",
                                            "--shuffle",
                                            "false",
                                            "--max_length",
                                            "128",
                                            "--learning_rate",
                                            "1e-3",
                                            "--per_device_train_batch_size",
                                            "1",
                                            "--dtype",
                                            "float32",
                                            "--max_steps",
                                            "1000",
                                            "--grace_period_s",
                                            "3",
                                            "--gradient_accumulation_steps",
                                            std::to_string(kRowsPerStep / 2)};
  HostJob job(hosts_, {.command = command});
  ASSERT_TRUE(wait_for_steps(output(), 2, kStart)) << job.all_output();
  job.agent(1).send(SIGTERM);
  ASSERT_TRUE(job.wait(20s)) << job.all_output();
  for (const int node : {0, 1}) {
    const ProcessResult result = job.agent(node).result();
    EXPECT_EQ(result.signal, SIGTERM) << "node " << node << " exit code " << result.exit_code << result.err;
  }
  EXPECT_EQ(files_named(output(), "checkpoint-", ""), std::vector<fs::path>{output() / "checkpoint-2"});
}

TEST_F(HostsFault, DeadNetworkIsNamedOnBothSides) {
  HostJob job(hosts_, {.ranks_per_node = 2, .command = endless()});
  ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
  hosts_.set_link(1, false);
  ASSERT_TRUE(job.wait(kSilence + kSoon));
  expect_error(job, 0, 75,
               HasSubstr("node 1 on host host1: all of it silent for 5.0 s (machine or network down?)"));
  expect_error(job, 1, 75,
               HasSubstr("the store at 10.77.0.1:29500 (agent of node 0) has been silent for 5.0 s"));
}

TEST_F(HostsFault, TakenPortIsNamed) {
  HostJob first(hosts_, {.num_nodes = 2, .command = endless()});
  ASSERT_TRUE(wait_for_rank(first, 0));
  HostJob second(hosts_, {.num_nodes = 2, .command = endless(), .nodes = {0}});
  ASSERT_TRUE(second.wait(kSoon));
  expect_error(
      second, 0, 78,
      HasSubstr(fmt::format("port 29500 is taken on this machine (10.77.0.1) by process {} (tessera)",
                            first.agent(0).pid())));
}

TEST_F(HostsFault, NodeOfAnotherJobIsRefused) {
  HostJob job(hosts_, {.launch_flags = {"--rdzv_conf", "timeout=3"},
                       .flags_of_node =
                           [](int node) {
                             return std::vector<std::string>{"--rdzv_id", node == 0 ? "mine" : "theirs"};
                           },
                       .command = endless()});
  ASSERT_TRUE(job.wait(3s + kSoon));
  const auto refusal = HasSubstr("it does not prove the job's secret and name: give the same");
  expect_error(job, 1, 78, AllOf(HasSubstr("what listens at"), refusal));
  expect_error(
      job, 0, 75,
      AllOf(HasSubstr("node 1 of 2 has not joined after 3 s; joined: node 0 on host host0"), refusal));
}

TEST_F(HostsFault, NodesOfDifferentSizesAreRefused) {
  HostJob job(hosts_, {.launch_flags = {"--rdzv_conf", "timeout=3"},
                       .flags_of_node =
                           [](int node) {
                             return std::vector<std::string>{"--nnodes", node == 0 ? "2" : "3"};
                           },
                       .command = endless()});
  ASSERT_TRUE(job.wait(3s + kSoon));
  const auto refusal = HasSubstr("node 1 on host host1 was started with --nnodes 3, node 0 with 2");
  expect_error(job, 1, 78, AllOf(HasSubstr("node 1 on host host1"), refusal));
  expect_error(
      job, 0, 75,
      AllOf(HasSubstr("node 1 of 2 has not joined after 3 s; joined: node 0 on host host0"), refusal));
}

TEST_F(HostsFault, DifferentSettingsAreNamedWithBothValues) {
  HostJob job(hosts_, {.command_of_node = [&](int node) {
                return endless({"--weight_decay", node == 0 ? "0.25" : "0.5"});
              }});
  ASSERT_TRUE(job.wait(kStart));
  for (const int node : {0, 1}) {
    expect_error(
        job, node, 78,
        HasSubstr("setting 'weight_decay' differs: '0.25' for rank 0 on host host0, '0.5' for rank 1 "
                  "on host host1"));
  }
}

TEST_F(HostsFault, MissingNodeIsNamedAtTheDeadline) {
  HostJob job(hosts_, {.ranks_per_node = 2,
                       .launch_flags = {"--rdzv_conf", "timeout=2"},
                       .command = endless(),
                       .nodes = {0}});
  ASSERT_TRUE(job.wait(2s + kSoon));
  expect_error(
      job, 0, 75,
      AllOf(HasSubstr("node 1 of 2 has not joined after 2 s; joined: node 0 on host host0; check that"),
            HasSubstr("port 29500 of host host0 can be reached")));
  HostJob other(hosts_, {.launch_flags = {"--rdzv_conf", "timeout=2"}, .command = endless(), .nodes = {1}});
  ASSERT_TRUE(other.wait(2s + kSoon));
  expect_error(
      other, 1, 75,
      AllOf(HasSubstr("cannot connect to 10.77.0.1:29500"), HasSubstr("; check that tessera launch")));
}

// The second node arrives 3 s after the first, and the name of the first resolves only 2 s after that.
TEST_F(HostsFault, LateNodeAndLateNameJoin) {
  hosts_.set_names("");
  HostJob job(hosts_, {.launch_flags = {"--rdzv_endpoint", "head:29500"},
                       .command = tiny_->train_arguments("out", {"--max_steps", "3"}),
                       .nodes = {0}});
  std::this_thread::sleep_for(3s);
  job.start(1);
  std::this_thread::sleep_for(2s);
  for (const int node : {0, 1}) EXPECT_FALSE(job.agent(node).has_ended()) << job.all_output();
  hosts_.set_names(Hosts::address(0) + " head\n");
  ASSERT_TRUE(job.wait(kStart));
  for (const int node : {0, 1}) EXPECT_EQ(job.agent(node).result().exit_code, 0) << job.all_output();
}

// The dataset file is empty on the second host only.
TEST_F(HostsFault, ErrorOfOneNodeIsEveryones) {
  const auto mount = hosts_.start(1, {"mount", "--bind", tiny_->folder.write("empty", ""), tiny_->text_file});
  ASSERT_TRUE(mount->wait(10s) && mount->result().exit_code == 0) << mount->err();
  HostJob job(hosts_, {.command = endless()});
  ASSERT_TRUE(job.wait(kStart));
  expect_error(job, 0, 65, AllOf(HasSubstr("host host1: "), HasSubstr("text.txt"), Not(HasSubstr("rank"))));
  expect_error(job, 1, 65, AllOf(HasSubstr("text.txt"), Not(HasSubstr("rank"))));
}

// On the second host, another file system is mounted over the folder.
TEST_F(HostsFault, OutputThatIsNotSharedIsRefusedInOneLine) {
  fs::create_directories(output());
  const auto mount = hosts_.start(1, {"mount", "-t", "tmpfs", "none", output()});
  ASSERT_TRUE(mount->wait(10s) && mount->result().exit_code == 0) << mount->err();
  HostJob job(hosts_, {.command = train(3)});
  ASSERT_TRUE(job.wait(kStart));
  for (const int node : {0, 1}) {
    expect_error(
        job, node, 78,
        AllOf(HasSubstr(fmt::format("output_dir {}: not the same folder on all nodes", output().string())),
              HasSubstr("save_strategy no")));
  }
  // Without checkpoints only the finished model is written, by rank 0.
  HostJob without(hosts_, {.command = train(3, {"--save_strategy", "no"})});
  ASSERT_TRUE(without.wait(kStart));
  for (const int node : {0, 1}) EXPECT_EQ(without.agent(node).result().exit_code, 0) << without.all_output();
  EXPECT_THAT(without.agent(0).err(), HasSubstr("a signal ends the run without a checkpoint"));
  EXPECT_TRUE(fs::exists(output() / "model.safetensors"));
}

// Processes that are not training ranks do not coordinate signals with others.
TEST_F(HostsFault, SigtermOfOneAgentOfAnotherProgramEndsItsNode) {
  for (const int node : {0, 1}) {
    SCOPED_TRACE(node);
    HostJob job(hosts_, {.ranks_per_node = 2, .command = {"--", "sleep", "1000"}});
    ASSERT_TRUE(wait_for_rank(job, 1) && wait_for_rank(job, 3));
    std::this_thread::sleep_for(1500ms);  // agents join within a second
    const std::vector<pid_t> ended = {job.rank(2 * node), job.rank(2 * node + 1)};
    job.agent(node).send(SIGTERM);
    ASSERT_TRUE(job.agent(node).wait(kSoon)) << job.all_output();
    const ProcessResult result = job.agent(node).result();
    EXPECT_EQ(result.signal, SIGTERM) << "exit code " << result.exit_code << "\n" << result.err;
    EXPECT_EQ(result.errors().size(), 0u) << result.err;
    for (const pid_t pid : ended) EXPECT_TRUE(is_gone(pid));
    if (node == 0) {  // the store ends with it
      ASSERT_TRUE(job.agent(1).wait(kSoon)) << job.all_output();
      expect_error(job, 1, 75, HasSubstr("the store at 10.77.0.1:29500 (agent of node 0)"));
    } else {
      std::this_thread::sleep_for(1s);
      EXPECT_FALSE(job.agent(0).has_ended()) << job.all_output();
      EXPECT_FALSE(is_gone(job.rank(0)));
    }
  }
}

// A stopped rank counts as failed only after the heartbeat timeout, but a wait may time out earlier.
TEST_F(HostsFault, WaitsEndAtDdpTimeout) {
  HostJob job(hosts_, {.ranks_per_node = 2, .command = endless({"--ddp_timeout", "3"})});
  ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
  const auto begin = Clock::now();
  job.send(3, SIGSTOP);
  ASSERT_TRUE(job.wait(kSilence + kSoon));
  EXPECT_GE(Clock::now() - begin, 3s);
  for (const int node : {0, 1}) {
    expect_error(
        job, node, 75,
        AllOf(HasSubstr("rank 3 on host host1"), HasSubstr("3.0 s"), HasSubstr("where every rank was")));
  }
  EXPECT_EQ(files_named(output(), "stall-", ".txt").size(), 1u);
}

TEST_F(HostsFault, AllNodesStartAgainAfterAFailure) {
  HostJob job(hosts_, {.ranks_per_node = 2,
                       .launch_flags = {"--max_restarts", "2"},
                       .command = tiny_->train_arguments(
                           "out", {"--per_device_train_batch_size", "1", "--max_steps", "300"})});
  ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
  job.send(3, SIGKILL);
  ASSERT_TRUE(job.wait(kStart));
  for (const int node : {0, 1}) {
    EXPECT_EQ(job.agent(node).result().exit_code, 0) << job.all_output();
    EXPECT_THAT(job.agent(node).err(),
                HasSubstr("rank 3 on host host1 was killed by signal 9 (SIGKILL); restart 1 of 2"));
  }
  EXPECT_TRUE(fs::exists(output() / "model.safetensors"));
}

}  // namespace
}  // namespace tessera
