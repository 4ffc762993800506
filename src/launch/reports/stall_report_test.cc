#include "launch/reports/stall_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>

#include "base/error.h"
#include "launch/reports/process_report.h"
#include "test_folder.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

LaunchPlan two_nodes(int node) {
  LaunchPlan plan;
  plan.num_nodes = 2;
  plan.node_rank = node;
  plan.local_world_size = 1;
  plan.run_id = "job";
  plan.host = "host" + std::to_string(node);
  return plan;
}

RankSituation situation(int rank) {
  RankPosition position;
  position.mark(Activity::kWork, {.what = "backward", .number = 7, .layer = 3});
  position.mark(Activity::kNetwork, {.what = "gradients", .number = 41, .layer = 4, .bytes = 1000});
  position.count_network(5000, 6000);
  return {.rank = rank,
          .pid = 10 + rank,
          .ended = "exit code 75",
          .peak_memory_bytes = 1 << 20,
          .position = position.read()};
}

json report_of(const LaunchPlan& plan, std::map<int, json> nodes) {
  Failure verdict;
  verdict.rank = 0;
  verdict.message = "rank 0 on host host0: silent";
  return make_stall_report({plan, 2, verdict, std::move(nodes), {{0, std::nullopt}, {1, 3.25}}});
}

TEST(StallReport, SaysWhereEveryRankIs) {
  const LaunchPlan plan = two_nodes(0);
  const json node =
      describe_node(plan, {situation(0)}, {.sent_segments = 100, .resent_segments = 3}, "stack");
  const json report = report_of(plan, {{0, node}});
  EXPECT_EQ(report.at("culprit_process"), "stack");
  EXPECT_FALSE(report.at("nodes")[0].contains("culprit_process"));
  EXPECT_EQ(report.at("nodes")[1].at("silent_s"), 3.25);
  EXPECT_THAT(
      stall_report_text(report),
      AllOf(HasSubstr("rank 0 on host host0: silent\n"), HasSubstr("job 'job', start 2, "),
            HasSubstr("rank 0 (process 10): ended: exit code 75, at most 1.00 MiB"),
            HasSubstr("step 7: backward of layer 3, for 0.0 s"),
            HasSubstr("between nodes: gradients of group 4, number 41, 1000 bytes, for 0.0 s"),
            HasSubstr("5000 bytes sent, 6000 received"), HasSubstr("3 of 100 TCP segments retransmitted"),
            HasSubstr("node 1: last heard from 3.2 s ago"), HasSubstr("what rank 0 was doing:\nstack")));
}

TEST(StallReport, FilesBearTheNodeThatSpeaksForItselfAlone) {
  const TestFolder folder;
  for (const int node : {0, 1}) {
    const LaunchPlan plan = two_nodes(node);
    const auto path = write_stall_report(folder.path() / "made",
                                         report_of(plan, {{node, describe_node(plan, {}, {}, "")}}));
    EXPECT_THAT(path.filename().string(),
                testing::MatchesRegex(node == 0 ? "stall-2-[0-9TZ]+.txt" : "stall-2-[0-9TZ]+-node1.txt"));
    std::ifstream file(std::filesystem::path(path).replace_extension(".json"));
    EXPECT_EQ(json::parse(file).at("written_by").at("node"), node);
  }
  EXPECT_THROW(write_stall_report("/proc/nowhere", report_of(two_nodes(0), {})), Error);
}

// Agents prove that they know the job's secret, but a job may have none.
TEST(StallReport, WhatIsNoDescriptionOfTheNodeIsLeftOut) {
  const json good = describe_node(two_nodes(1), {situation(1)}, {}, "");
  EXPECT_TRUE(parse_node_report(good.dump(), 1));
  EXPECT_FALSE(parse_node_report(good.dump(), 0)) << "another node's";
  EXPECT_FALSE(parse_node_report(good.dump().substr(1), 1));
  EXPECT_FALSE(parse_node_report("[]", 1));
  EXPECT_FALSE(parse_node_report("17", 1));
  for (const auto& [key, value] : good.items()) {
    json changed = good;
    changed[key] = json::array({"nonsense"});
    EXPECT_FALSE(parse_node_report(changed.dump(), 1)) << key;
    changed.erase(key);
    EXPECT_FALSE(parse_node_report(changed.dump(), 1)) << "without " << key;
  }
  json culprit = good;
  culprit["culprit_process"] = "waits";
  EXPECT_TRUE(parse_node_report(culprit.dump(), 1));
  culprit["culprit_process"] = 17;
  EXPECT_FALSE(parse_node_report(culprit.dump(), 1));
  for (const auto& [key, value] : good.at("ranks")[0].items()) {
    json changed = good;
    changed["ranks"][0].erase(key);
    EXPECT_FALSE(parse_node_report(changed.dump(), 1)) << "rank without " << key;
  }
}

TEST(NetworkStatistics, AreSumsOverInterfacesButLoopback) {
  const TestFolder folder;
  std::filesystem::create_directories(folder.path() / "net");
  std::ofstream(folder.path() / "net/dev")
      << "Inter-|   Receive    |  Transmit\n"
         " face |bytes packets errs drop fifo frame compressed multicast|bytes\n"
         "    lo: 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9\n"
         "  eth0: 100 2 3 4 0 0 0 0 200 5 6 7 0 0 0 0\n"
         "  eth1:1000 2 0 0 0 0 0 0 2000 5 1 0 0 0 0 0\n";
  std::ofstream(folder.path() / "net/snmp") << "Ip: Forwarding DefaultTTL\nIp: 1 64\n"
                                               "Tcp: RtoMin MaxConn OutSegs RetransSegs InErrs\n"
                                               "Tcp: 200 -1 5000 12 0\n";
  const NetworkStatistics found = read_network_statistics(folder.path());
  EXPECT_EQ(found.received_bytes, 1100);
  EXPECT_EQ(found.sent_bytes, 2200);
  EXPECT_EQ(found.faulty_packets, 10);
  EXPECT_EQ(found.dropped_packets, 11);
  EXPECT_EQ(found.sent_segments, 5000);
  EXPECT_EQ(found.resent_segments, 12);
  EXPECT_EQ((found - NetworkStatistics{.sent_segments = 4000}).sent_segments, 1000);
  EXPECT_EQ(read_network_statistics(folder.path() / "nowhere").sent_bytes, 0);
}

TEST(ProcessState, TellsAStoppedProcessAndOneThatIsGone) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  kill(child, SIGSTOP);
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  EXPECT_EQ(process_state(child).state, "stopped");
  EXPECT_GT(process_state(child).resident_bytes, 0);
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  EXPECT_FALSE(process_state(child).is_there);
}

}  // namespace
}  // namespace tessera
