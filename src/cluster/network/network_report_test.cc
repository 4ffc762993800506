#include "cluster/network/network_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

NetworkMatrix even_network(int num_nodes) {
  NetworkMatrix matrix;
  matrix.gbit_per_s = matrix.tcp_gbit_per_s = matrix.latency_us = matrix.unreachable = LinkMatrix(num_nodes);
  for (int from = 0; from < num_nodes; ++from) {
    matrix.hosts.push_back("training-node-0-" + std::to_string(from));
    for (int to = 0; to < num_nodes; ++to) {
      if (from == to) continue;
      matrix.gbit_per_s.at(from, to) = 9.4;
      matrix.tcp_gbit_per_s.at(from, to) = 5;
      matrix.latency_us.at(from, to) = 80 + 5 * from;
    }
  }
  return matrix;
}

TEST(NetworkReport, EvenNetworkHasNoFinding) {
  const NetworkMatrix matrix = even_network(4);
  EXPECT_TRUE(judge_network(matrix, {}).empty());
  EXPECT_THAT(network_text(matrix, {}), HasSubstr("no link is slower than the others"));
  EXPECT_EQ(network_json(matrix, {})["ok"], true);
}

TEST(NetworkReport, SlowLinkAndMissingLinkAreNamed) {
  NetworkMatrix matrix = even_network(4);
  matrix.gbit_per_s.at(1, 3) = 0.9;
  matrix.gbit_per_s.at(0, 2) = matrix.gbit_per_s.at(2, 0) = 0;
  matrix.unreachable.at(2, 0) = 1;
  const std::vector<NetworkFinding> findings = judge_network(matrix, {});
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_THAT(findings[0].message,
              HasSubstr("node 0 (training-node-0-0) to node 2 (training-node-0-2): no connection"));
  EXPECT_EQ(findings[1].message,
            "node 1 (training-node-0-1) to node 3 (training-node-0-3): 0.9 Gbit/s, typical is 9.4 Gbit/s");
  const auto report = network_json(matrix, findings);
  EXPECT_EQ(report["ok"], false);
  EXPECT_EQ(report["gbit_per_s"][0][2], nullptr);
  EXPECT_EQ(report["gbit_per_s"][1][3], 0.9);
  EXPECT_EQ(report["findings"][1]["kind"], "slow_link");
  EXPECT_EQ(report["findings"][1]["from"], 1);
}

TEST(NetworkReport, SlowNodeIsNamedWithItsDirection) {
  NetworkMatrix matrix = even_network(4);
  for (const int other : {0, 1, 3}) matrix.gbit_per_s.at(other, 2) = 1;
  const std::vector<NetworkFinding> findings = judge_network(matrix, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].message,
              AllOf(HasSubstr("node 2 (training-node-0-2) receives from most others with 1 Gbit/s"),
                    HasSubstr("typical is 9.4 Gbit/s")));
  EXPECT_EQ(network_json(matrix, findings)["findings"][0]["from"], nullptr);
  EXPECT_EQ(network_json(matrix, findings)["findings"][0]["to"], 2);
}

// plan --network reads this.
TEST(NetworkReport, JsonHasTheTypicalLink) {
  NetworkMatrix matrix = even_network(4);
  matrix.gbit_per_s.at(0, 1) = 1;
  matrix.latency_us.at(0, 1) = 9000;
  const auto typical = network_json(matrix, {})["typical"];
  EXPECT_EQ(typical["gbit_per_s"], 9.4);
  EXPECT_GE(typical["latency_us"], 80);
  EXPECT_LE(typical["latency_us"], 95);
}

TEST(NetworkReport, LatencyCountsOnlyFromHalfAMillisecond) {
  NetworkMatrix matrix = even_network(3);
  matrix.latency_us.at(0, 1) = 450;
  EXPECT_TRUE(judge_network(matrix, {}).empty()) << "five times as long, but short";
  matrix.latency_us.at(0, 1) = 700;
  const std::vector<NetworkFinding> findings = judge_network(matrix, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, "slow_link_latency");
  EXPECT_THAT(findings[0].message, HasSubstr("700 us"));
}

TEST(NetworkReport, TablesFitEightyColumns) {
  for (const int num_nodes : {2, 9, 10, 64}) {
    NetworkMatrix matrix = even_network(num_nodes);
    matrix.latency_us.at(0, 1) = 12345678;
    std::istringstream lines(network_text(matrix, {}));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  }
}

}  // namespace
}  // namespace tessera
