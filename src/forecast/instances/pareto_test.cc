#include "forecast/instances/pareto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace tessera {
namespace {

bool beats_or_equals(const Cost& a, const Cost& b) { return a.hours <= b.hours && a.usd <= b.usd; }

TEST(ParetoFront, OfNothingIsEmptyAndOfEqualPointsTheFirst) {
  EXPECT_TRUE(pareto_front({}).empty());
  const std::vector<Cost> equal(3, Cost{1, 2});
  EXPECT_THAT(pareto_front(equal), testing::ElementsAre(0));
  const std::vector<Cost> chain = {{3, 1}, {1, 3}, {2, 2}, {2, 3}, {3, 1}};
  EXPECT_THAT(pareto_front(chain), testing::ElementsAre(1, 2, 0));
}

TEST(ParetoFront, HoldsExactlyThePointsThatNoOtherBeats) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    // Few different values, so that ties are common.
    std::uniform_int_distribution<int> value(1, round % 2 == 0 ? 6 : 1000);
    std::vector<Cost> points(static_cast<size_t>(round % 40));
    for (Cost& point : points) {
      point = {static_cast<double>(value(random)), static_cast<double>(value(random))};
    }
    const std::vector<size_t> front = pareto_front(points);
    for (size_t i = 0; i < points.size(); ++i) {
      bool is_beaten = false;
      for (size_t j = 0; j < points.size(); ++j) {
        is_beaten |= beats_or_equals(points[j], points[i]) && (!(points[j] == points[i]) || j < i);
      }
      const bool is_on_front = std::ranges::find(front, i) != front.end();
      EXPECT_NE(is_on_front, is_beaten) << "round " << round << ", point " << i;
    }
    for (size_t i = 1; i < front.size(); ++i) {
      EXPECT_LT(points[front[i - 1]].hours, points[front[i]].hours);
      EXPECT_GT(points[front[i - 1]].usd, points[front[i]].usd);
    }
  }
}

}  // namespace
}  // namespace tessera
