// A job that hangs or loses a node leaves one report of where every rank of every node was.
#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "e2e/hosts_fixture.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using nlohmann::json;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

class Stall : public HostsFixture {
 protected:
  // Returns the only report, which must be named in the error lines of these nodes.
  json only_report(HostJob& job, const fs::path& folder, const std::vector<int>& named_by) {
    const std::vector<fs::path> texts = files_named(folder, "stall-", ".txt");
    const std::vector<fs::path> reports = files_named(folder, "stall-", ".json");
    EXPECT_EQ(texts.size(), 1u) << job.all_output();
    EXPECT_EQ(reports.size(), 1u);
    if (texts.size() != 1 || reports.size() != 1) return {};
    for (const int node : named_by) {
      EXPECT_THAT(job.agent(node).err(), HasSubstr("; where every rank was: " + texts[0].string()));
    }
    text_ = read_file(texts[0]);
    return json::parse(read_file(reports[0]));
  }

  // Kills the agent of one of two nodes; returns the report that the other node names.
  json report_on_lost_agent(int node) {
    HostJob job(hosts_, {.ranks_per_node = 2, .command = endless()});
    EXPECT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
    job.agent(node).send(SIGKILL);
    EXPECT_TRUE(job.wait(kSoon));
    return only_report(job, output(), {1 - node});
  }

  // Expects the position of a rank that has trained for some steps.
  static void expect_position(const json& rank) {
    SCOPED_TRACE(rank.dump());
    EXPECT_GT(rank.at("pid"), 0);
    EXPECT_GT(rank.at("peak_resident_bytes"), 1 << 20);
    ASSERT_TRUE(rank.at("work").is_object());
    EXPECT_GE(rank.at("work").at("step"), 3);
    EXPECT_NE(rank.at("work").at("what"), "");
    ASSERT_TRUE(rank.at("node_operation").is_object());
    EXPECT_GT(rank.at("node_operation").at("number"), 0);
    ASSERT_TRUE(rank.at("network_operation").is_object());
    EXPECT_GT(rank.at("network_operation").at("number"), 0);
    EXPECT_GE(rank.at("network_operation").at("bytes"), 0);
    EXPECT_GT(rank.at("sent_bytes"), 0);
    EXPECT_GT(rank.at("received_bytes"), 0);
  }

  std::string text_;
};

TEST_F(Stall, StoppedRankOfEitherNodeIsInOneReportOnAll) {
  for (const int victim : {1, 3}) {
    SCOPED_TRACE(victim);
    HostJob job(hosts_, {.ranks_per_node = 2, .command = endless()});
    ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
    const pid_t pid = job.rank(victim);
    job.send(victim, SIGSTOP);
    ASSERT_TRUE(job.wait(kSilence + kSoon));
    const json report = only_report(job, output(), {0, 1});
    ASSERT_TRUE(report.is_object());
    EXPECT_EQ(report.at("cause"),
              fmt::format("rank {} on host host{}: silent for 5.0 s", victim, victim / 2));
    EXPECT_EQ(report.at("culprit_rank"), victim);
    EXPECT_EQ(report.at("written_by").at("host"), "host0");
    EXPECT_THAT(report.at("culprit_process").get<std::string>(),
                AllOf(HasSubstr(fmt::format("process {} ", pid)),
                      AnyOf(HasSubstr("tessera::Trainer::"), HasSubstr("in generated code"),
                            HasSubstr("stacks are incomplete"))));
    ASSERT_EQ(report.at("nodes").size(), 2u);
    int num_waiting = 0;
    for (const json& node : report.at("nodes")) {
      EXPECT_EQ(node.at("host"), fmt::format("host{}", node.at("node").get<int>()));
      EXPECT_GT(node.at("memory").at("available_bytes"), 0);
      EXPECT_GT(node.at("network").at("sent_bytes"), 0);
      EXPECT_GT(node.at("network").at("tcp_sent_segments"), 0);
      ASSERT_EQ(node.at("ranks").size(), 2u);
      for (const json& rank : node.at("ranks")) {
        expect_position(rank);
        const bool is_victim = rank.at("rank") == victim;
        if (is_victim) {
          EXPECT_EQ(rank.at("pid"), pid);
          EXPECT_GE(rank.at("work").at("since_s"), 4);
        }
        EXPECT_THAT(rank.at("state").get<std::string>(), StartsWith(is_victim ? "stopped" : "ended: "));
        // Ranks that are not stopped have been waiting since the stop.
        for (const char* what : {"node_operation", "network_operation"}) {
          num_waiting +=
              !is_victim && !rank.at(what).at("is_over") && rank.at(what).at("since_s") > 4 ? 1 : 0;
        }
      }
    }
    EXPECT_GE(num_waiting, 3) << report.dump(1);
    EXPECT_THAT(text_,
                AllOf(HasSubstr("rank 0 (process "), HasSubstr("rank 3 (process "), HasSubstr("): stopped"),
                      HasSubstr(fmt::format("what rank {} was doing", victim))));
    fs::remove_all(output());
  }
}

TEST_F(Stall, NodeWhoseAgentWasKilledIsListedAsLost) {
  const json report = report_on_lost_agent(1);
  ASSERT_TRUE(report.is_object());
  ASSERT_EQ(report.at("nodes").size(), 2u);
  for (const json& rank : report.at("nodes")[0].at("ranks")) expect_position(rank);
  EXPECT_THAT(report.at("nodes")[1].at("lost").get<std::string>(), HasSubstr("last heard from "));
  EXPECT_LT(report.at("nodes")[1].at("silent_s"), 5);
  EXPECT_TRUE(report.at("culprit_process").is_null());
  EXPECT_THAT(text_, HasSubstr("node 1: last heard from "));
}

// Nobody can combine the reports then: each of the other nodes reports its own ranks.
TEST_F(Stall, WithoutNodeZeroTheOthersReportThemselves) {
  const json report = report_on_lost_agent(0);
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report.at("written_by").at("node"), 1);
  EXPECT_THAT(report.at("nodes")[0].at("lost").get<std::string>(), HasSubstr("heard from"));
  ASSERT_EQ(report.at("nodes")[1].at("ranks").size(), 2u);
  for (const json& rank : report.at("nodes")[1].at("ranks")) expect_position(rank);
}

// On one node, into the folder of log files, detected by the timeout of a wait before the rank counts as
// silent.
TEST_F(Stall, ReportLiesBesideTheLogsWhereThereAreAny) {
  const fs::path logs = tiny_->folder / "logs";
  std::vector<std::string> arguments = {tessera_binary(), "launch",     "--nproc_per_node", "2",
                                        "--log_dir",      logs.string()};
  for (const std::string& argument : endless({"--ddp_timeout", "2"})) arguments.push_back(argument);
  StartedProcess agent(arguments, {});
  ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << agent.err();
  kill(pid_of_rank(agent.pid(), 1), SIGSTOP);
  ASSERT_TRUE(agent.wait(kSilence + kSoon)) << agent.err();
  EXPECT_EQ(agent.result().exit_code, 75);
  EXPECT_THAT(agent.err(), HasSubstr("rank 1 on host "));
  std::vector<fs::path> reports;
  for (const auto& entry : fs::directory_iterator(logs)) {
    for (const fs::path& path : files_named(entry.path(), "stall-", ".json")) reports.push_back(path);
  }
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_THAT(files_named(output(), "stall-", ""), testing::IsEmpty());
  const json report = json::parse(read_file(reports[0]));
  const json& waiting = report.at("nodes")[0].at("ranks")[0].at("node_operation");
  EXPECT_EQ(waiting.at("waits_for_rank"), 1) << report.dump(1);
  EXPECT_FALSE(waiting.at("is_over"));
}

TEST_F(Stall, KilledRankIsNoStandstill) {
  HostJob job(hosts_, {.ranks_per_node = 2, .command = endless()});
  ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
  job.send(2, SIGKILL);
  ASSERT_TRUE(job.wait(kSoon));
  EXPECT_THAT(files_named(output(), "stall-", ""), testing::IsEmpty());
}

}  // namespace
}  // namespace tessera
