#include "cluster/network/slow_links.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace tessera {
namespace {

// Every link carries `speed`, apart from some noise.
LinkMatrix even_links(int num_nodes, double speed = 10) {
  LinkMatrix matrix(num_nodes);
  for (int from = 0; from < num_nodes; ++from) {
    for (int to = 0; to < num_nodes; ++to) {
      if (from != to) matrix.at(from, to) = speed * (0.95 + 0.01 * ((from * 7 + to * 3) % 10));
    }
  }
  return matrix;
}

TEST(Rounds, EachPairMeetsOnceAndNobodyTwiceInARound) {
  EXPECT_EQ(num_rounds(1), 0);
  EXPECT_EQ(num_rounds(2), 1);
  for (int num_nodes = 2; num_nodes <= 33; ++num_nodes) {
    std::set<std::pair<int, int>> met;
    for (int round = 0; round < num_rounds(num_nodes); ++round) {
      for (int node = 0; node < num_nodes; ++node) {
        const int partner = partner_of(node, round, num_nodes);
        if (partner < 0) continue;
        ASSERT_NE(partner, node);
        ASSERT_EQ(partner_of(partner, round, num_nodes), node) << num_nodes << " nodes, round " << round;
        if (node < partner) {
          EXPECT_TRUE(met.emplace(node, partner).second) << num_nodes << " nodes";
        }
      }
    }
    EXPECT_EQ(std::ssize(met), num_nodes * (num_nodes - 1) / 2) << num_nodes << " nodes";
  }
}

TEST(SlowLinksSearch, EvenNetworkHasNone) {
  for (const int num_nodes : {0, 1, 2, 3, 4, 16})
    EXPECT_TRUE(find_slow_links(even_links(num_nodes), 0.6).empty());
}

TEST(SlowLinksSearch, OneSlowDirectionIsThatLink) {
  for (const int num_nodes : {2, 3, 4, 9}) {
    LinkMatrix matrix = even_links(num_nodes);
    matrix.at(1, 0) = 1;
    const SlowLinks slow = find_slow_links(matrix, 0.6);
    EXPECT_TRUE(slow.nodes.empty()) << num_nodes;
    ASSERT_EQ(slow.links.size(), 1u) << num_nodes;
    EXPECT_EQ(slow.links[0].from, 1);
    EXPECT_EQ(slow.links[0].to, 0);
    EXPECT_EQ(slow.links[0].value, 1);
    EXPECT_NEAR(slow.typical, 10, 0.5);
  }
}

TEST(SlowLinksSearch, NodeWhoseLinksAreSlowIsNamedInsteadOfThem) {
  for (const int num_nodes : {3, 4, 9}) {
    for (const bool both : {false, true}) {
      LinkMatrix matrix = even_links(num_nodes);
      for (int other = 0; other < num_nodes; ++other) {
        if (other == 2) continue;
        matrix.at(2, other) = 1;
        if (both) matrix.at(other, 2) = 1;
      }
      const SlowLinks slow = find_slow_links(matrix, 0.6);
      EXPECT_TRUE(slow.links.empty()) << num_nodes;
      ASSERT_EQ(slow.nodes.size(), both ? 2u : 1u) << num_nodes;
      for (const SlowNode& node : slow.nodes) EXPECT_EQ(node.node, 2);
      EXPECT_TRUE(slow.nodes[0].sends);
    }
  }
}

TEST(SlowLinksSearch, TwoSlowReceiversDoNotBlameTheSenders) {
  LinkMatrix matrix = even_links(4);
  for (int from = 0; from < 4; ++from) {
    for (const int to : {1, 3}) {
      if (from != to) matrix.at(from, to) = 2;
    }
  }
  const SlowLinks slow = find_slow_links(matrix, 0.6);
  EXPECT_TRUE(slow.links.empty());
  ASSERT_EQ(slow.nodes.size(), 2u);
  for (const SlowNode& node : slow.nodes) {
    EXPECT_FALSE(node.sends);
    EXPECT_TRUE(node.node == 1 || node.node == 3);
  }
}

TEST(SlowLinksSearch, LinksThatWereNotMeasuredDoNotCount) {
  LinkMatrix matrix = even_links(4);
  matrix.at(0, 1) = matrix.at(1, 0) = 0;
  EXPECT_TRUE(find_slow_links(matrix, 0.6).empty());
}

TEST(SlowLinksSearch, LeastSpeedCountsWhereAllAreAlike) {
  EXPECT_TRUE(find_slow_links(even_links(2), 0.6, 5).empty());
  EXPECT_EQ(find_slow_links(even_links(2), 0.6, 20).links.size(), 2u);
}

}  // namespace
}  // namespace tessera
