// Nodes that come and go: which of them meet, which ranks they get, and when the job ends.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <sstream>

#include "e2e/host_job.h"
#include "e2e/tiny_model.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto kLong = 30s;

class HostsElastic : public testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.problem().empty()) GTEST_SKIP() << hosts_.problem();
  }

  // Ranks that print who they are and run until finish().
  HostJobOptions options(const std::string& nnodes, std::vector<int> nodes,
                         const std::string& conf = "last_call_timeout=0.5") {
    return {.num_nodes = 3,
            .launch_flags = {"--nnodes", nnodes, "--rdzv_conf", conf, "--rdzv_secret_file", secret_file_},
            .command = {"--", "/bin/sh", "-c",
                        "echo rank $RANK of $WORLD_SIZE, start $TORCHELASTIC_RESTART_COUNT, resume "
                        "\"$TESSERA_RESUME\"; while [ ! -e " +
                            end_ + " ]; do sleep 0.05; done"},
            .nodes = std::move(nodes)};
  }
  void finish() const { std::ofstream(end_) << "end"; }

  static void expect_said(HostJob& job, int node, const std::string& text) {
    ASSERT_TRUE(job.agent(node).wait_for_output(text, kLong)) << text << "\n" << job.all_output();
  }
  static void expect_success(HostJob& job, int node) {
    EXPECT_EQ(job.agent(node).result().exit_code, 0) << "node " << node << "\n" << job.all_output();
  }

  Hosts hosts_{3};
  TemporaryFolder folder_;
  std::string end_ = folder_ / "end";
  std::string secret_file_ = folder_.write("secret", "the secret of this job\n");
};

TEST_F(HostsElastic, StartsWithTheFewestWhenNoMoreCome) {
  HostJob job(hosts_, options("2:3", {0, 2}));
  expect_said(job, 0, "rank 0 of 2, start 0, resume \n");
  expect_said(job, 2, "rank 1 of 2, start 0, resume \n");
  finish();
  ASSERT_TRUE(job.wait(kLong));
  for (const int node : {0, 2}) expect_success(job, node);
}

TEST_F(HostsElastic, LostNodeIsGivenUpAndAReturningOneJoinsAtTheNextStart) {
  HostJob job(hosts_, options("2:3", {}));
  for (const int node : {0, 1, 2}) expect_said(job, node, fmt::format("rank {} of 3, start 0", node));
  job.agent(1).send(SIGKILL);
  expect_said(job, 0, "rank 0 of 2, start 1, resume auto");
  expect_said(job, 2, "rank 1 of 2, start 1, resume auto");
  // The second message if it was killed between the meeting and joining the store.
  EXPECT_THAT(job.agent(0).err(),
              testing::AnyOf(HasSubstr("the agent of node 1 on host host1 ended without a word"),
                             HasSubstr("the agent of node 1 has not come")));
  EXPECT_THAT(job.agent(0).err(), HasSubstr("restart, not counted"));
  // The running job is left alone.
  ASSERT_TRUE(job.agent(1).wait(kLong));
  job.start(1);
  expect_said(job, 1, "the job runs on 2 nodes (start 1)");
  EXPECT_FALSE(job.agent(0).has_ended());
  // After the next loss there are two nodes again, each with its place.
  job.agent(2).send(SIGKILL);
  expect_said(job, 0, "rank 0 of 2, start 2");
  expect_said(job, 1, "rank 1 of 2, start 2, resume auto");
  finish();
  ASSERT_TRUE(job.wait(kLong));
  for (const int node : {0, 1}) expect_success(job, node);
}

TEST_F(HostsElastic, NodeThatWaitsInVainEndsWithTheJob) {
  HostJob job(hosts_, options("2:3", {0, 1}));
  for (const int node : {0, 1}) expect_said(job, node, fmt::format("rank {} of 2, start 0", node));
  job.start(2);
  expect_said(job, 2, "the job runs on 2 nodes (start 0)");
  finish();
  ASSERT_TRUE(job.wait(kLong));
  for (const int node : {0, 1, 2}) expect_success(job, node);
  EXPECT_THAT(job.agent(2).err(), HasSubstr("the job has ended; this node was not needed"));
}

// --nnodes 2: the place of the lost node stays free until its successor takes it.
TEST_F(HostsElastic, FixedNumberOfNodesWaitsForTheLostOne) {
  HostJobOptions fixed = options("2", {0, 1});
  fixed.launch_flags.insert(fixed.launch_flags.end(), {"--max_restarts", "1"});
  HostJob job(hosts_, fixed);
  for (const int node : {0, 1}) expect_said(job, node, fmt::format("rank {} of 2, start 0", node));
  for (int start = 1; start <= 2; ++start) {  // neither of them counts
    job.agent(1).send(SIGKILL);
    ASSERT_TRUE(job.agent(1).wait(kLong));
    job.start(1);
    for (const int node : {0, 1}) {
      expect_said(job, node, fmt::format("rank {} of 2, start {}, resume auto", node, start));
    }
  }
  finish();
  ASSERT_TRUE(job.wait(kLong));
  for (const int node : {0, 1}) expect_success(job, node);
}

TEST_F(HostsElastic, EndOfNode0IsTheEndOfTheJob) {
  HostJob job(hosts_, options("1:3", {}));
  for (const int node : {0, 1, 2}) expect_said(job, node, fmt::format("rank {} of 3", node));
  job.agent(0).send(SIGKILL);
  ASSERT_TRUE(job.wait(kLong));
  for (const int node : {1, 2}) {
    const ProcessResult result = job.agent(node).result();
    EXPECT_EQ(result.exit_code, 75) << job.all_output();
    ASSERT_EQ(result.errors().size(), 1u) << result.err;
    EXPECT_THAT(result.errors()[0],
                testing::AnyOf(HasSubstr("the store at 10.77.0.1:29500 (agent of node 0) ended"),
                               HasSubstr("the agent of node 0 cannot be reached after the nodes met")));
  }
}

TEST_F(HostsElastic, ProgramsFailuresCount) {
  HostJobOptions failing = options("2:3", {0, 1});
  failing.launch_flags.insert(failing.launch_flags.end(), {"--max_restarts", "1"});
  failing.command = {"--", "/bin/sh", "-c",
                     "echo start $TORCHELASTIC_RESTART_COUNT; [ $RANK = 1 ] && exit 3; sleep 60"};
  HostJob job(hosts_, failing);
  ASSERT_TRUE(job.wait(kLong));
  EXPECT_EQ(job.agent(1).result().exit_code, 3) << job.all_output();
  EXPECT_EQ(job.agent(0).result().exit_code, 75) << job.all_output();
  for (const int node : {0, 1}) {
    const ProcessResult result = job.agent(node).result();
    EXPECT_THAT(result.out, AllOf(HasSubstr("start 1"), testing::Not(HasSubstr("start 2"))));
    EXPECT_THAT(result.err, HasSubstr("rank 1 on host host1 ended with exit code 3; restart 1 of 1"));
    ASSERT_EQ(result.errors().size(), 1u) << result.err;
    EXPECT_EQ(result.errors()[0], "rank 1 on host host1 ended with exit code 3");
  }
}

TEST_F(HostsElastic, NodeWithAnotherSecretIsRefused) {
  HostJobOptions both = options("2", {0, 1}, "timeout=3");
  const std::string other = folder_.write("other", "another secret, 24 letters");
  both.flags_of_node = [&](int node) {
    return node == 0 ? std::vector<std::string>{} : std::vector<std::string>{"--rdzv_secret_file", other};
  };
  HostJob job(hosts_, both);
  ASSERT_TRUE(job.wait(kLong));
  EXPECT_EQ(job.agent(1).result().exit_code, 78) << job.all_output();
  EXPECT_THAT(job.agent(1).err(), HasSubstr("it does not prove the job's secret"));
  EXPECT_THAT(job.agent(1).err(), testing::Not(HasSubstr("another secret")));
  EXPECT_EQ(job.agent(0).result().exit_code, 75) << job.all_output();
  EXPECT_THAT(job.agent(0).err(), HasSubstr("refused: it does not prove the job's secret"));
}

// "address:port", hexadecimal, of the sockets that listen in a process's network namespace.
std::vector<std::string> listening(pid_t pid, const std::string& table) {
  std::istringstream lines(read_file(fmt::format("/proc/{}/net/{}", pid, table)));
  std::vector<std::string> found;
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string number;
    std::string local;
    std::string remote;
    std::string state;
    fields >> number >> local >> remote >> state;
    if (state == "0A") found.push_back(local);
  }
  return found;
}

TEST_F(HostsElastic, NothingListensBesideTheStoreOnItsAddress) {
  const TinyModel tiny;
  HostJobOptions training = options("2", {0, 1});
  training.command = tiny.train_arguments("out", {"--per_device_train_batch_size", "1", "--max_steps",
                                                  "1000000", "--num_train_epochs", "1000000"});
  HostJob job(hosts_, training);
  ASSERT_TRUE(wait_for_steps(tiny.folder / "out", 3, kLong)) << job.all_output();
  EXPECT_THAT(listening(job.agent(0).pid(), "tcp"), ElementsAre("01004D0A:733C"));  // 10.77.0.1:29500
  EXPECT_THAT(listening(job.agent(0).pid(), "tcp6"), IsEmpty());
  EXPECT_THAT(listening(job.agent(1).pid(), "tcp"), IsEmpty());
  EXPECT_THAT(listening(job.agent(1).pid(), "tcp6"), IsEmpty());
}

// Checkpoints of nodes that train on their own do not depend on how many there are: three nodes become two, a
// replacement joins after the next loss, and the job continues.
TEST_F(HostsElastic, NodesThatTrainOnTheirOwnComeAndGo) {
  const TinyModel tiny;
  HostJobOptions training = options("1:3", {});
  training.command = tiny.train_arguments(
      "out", {"--per_device_train_batch_size", "1", "--max_steps", "1000000", "--num_train_epochs", "1000000",
              "--sync_every", "4", "--num_fragments", "2", "--fragment_sync_delay", "1", "--save_steps", "3",
              "--save_total_limit", "2"});
  HostJob job(hosts_, training);
  const auto steps_later = [&](int count) {
    const std::string lines = read_file(tiny.folder / "out/metrics.jsonl");
    const auto done = static_cast<int>(std::count(lines.begin(), lines.end(), '\n'));
    return wait_for_steps(tiny.folder / "out", done + count, kLong);
  };
  ASSERT_TRUE(wait_for_steps(tiny.folder / "out", 8, kLong)) << job.all_output();
  job.agent(1).send(SIGKILL);
  expect_said(job, 0, "start 1: this is node 0 of 2");
  ASSERT_TRUE(steps_later(10)) << job.all_output();
  ASSERT_TRUE(job.agent(1).wait(kLong));
  job.start(1);
  expect_said(job, 1, "the job runs on 2 nodes (start 1)");
  job.agent(2).send(SIGKILL);
  expect_said(job, 1, "start 2: this is node 1 of 2");
  ASSERT_TRUE(steps_later(10)) << job.all_output();
  EXPECT_FALSE(job.agent(0).has_ended());
  for (const int node : {0, 1}) EXPECT_THAT(job.agent(node).err(), testing::Not(HasSubstr("error:")));
  job.agent(0).send(SIGTERM);
  ASSERT_TRUE(job.agent(0).wait(kLong));
  EXPECT_EQ(job.agent(0).result().signal, SIGTERM) << job.all_output();
}

// A node is drained: it saves and ends by the signal, the others continue.
TEST_F(HostsElastic, EvictedNodeLeavesAndTheOthersGoOn) {
  const TinyModel tiny;
  HostJobOptions training = options("1:2", {0, 1});
  training.command = tiny.train_arguments("out", {"--per_device_train_batch_size", "1", "--max_steps",
                                                  "1000000", "--num_train_epochs", "1000000"});
  HostJob job(hosts_, training);
  ASSERT_TRUE(wait_for_steps(tiny.folder / "out", 3, kLong)) << job.all_output();
  job.agent(1).send(SIGTERM);
  ASSERT_TRUE(job.agent(1).wait(kLong)) << job.all_output();
  EXPECT_EQ(job.agent(1).result().signal, SIGTERM) << job.all_output();
  expect_said(job, 0, "start 1: this is node 0 of 1");
  EXPECT_THAT(job.agent(0).err(), HasSubstr("a node of the job was told to end; restart, not counted"));
  EXPECT_FALSE(job.agent(0).has_ended());
  job.agent(0).send(SIGTERM);
  ASSERT_TRUE(job.agent(0).wait(kLong));
  EXPECT_EQ(job.agent(0).result().signal, SIGTERM) << job.all_output();
}

}  // namespace
}  // namespace tessera
