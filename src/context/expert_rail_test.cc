#include "context/expert_rail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "support/draws.h"
#include "support/ranks/rank_test_support.h"

namespace tessera {
namespace {

using testing::Each;
using testing::IsEmpty;

constexpr int64_t kWidth = 5;

// The experts of all rows of a rank: drawn alike by everybody. Some ranks have no tokens, and in some chunks
// all tokens choose a few experts.
std::vector<int32_t> draw_experts(std::mt19937_64& random, int64_t max_tokens, int64_t top_k,
                                  int64_t num_experts) {
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  const int64_t num_tokens = below(4) == 0 ? 0 : below(max_tokens + 1);
  const int64_t first = below(num_experts - top_k + 1);
  const int64_t some = below(2) == 0 ? top_k : num_experts - first;
  std::vector<int32_t> experts;
  for (int64_t t = 0; t < num_tokens; ++t) {
    // Distinct experts for a token.
    const int64_t of_token = below(some);
    for (int64_t j = 0; j < top_k; ++j)
      experts.push_back(static_cast<int32_t>(first + (of_token + j) % some));
  }
  return experts;
}

ExpertRows rows_of(const std::vector<int32_t>& experts, int64_t top_k, int64_t num_experts) {
  ExpertRows rows;
  rows.resize(std::ssize(experts) / top_k, top_k, num_experts);
  rows.experts = experts;
  rows.group();
  return rows;
}

// The value of a rank's row, which depends on its choice.
float value_of(int64_t node, int64_t choice, int64_t column) {
  return static_cast<float>(node * 1'000'000 + choice * 10 + column);
}

// Every row arrives at the node of its expert, once, in the order of experts, nodes and rows; what is given
// back reaches the row that it came from.
TEST(ExpertRail, BringsEveryRowToItsExpertAndBack) {
  for (const int nodes : {2, 3, 5}) {
    const auto errors = run_communicators(nodes, /*local_world_size=*/2, {}, [](Communicator& comm) {
      const int64_t num_nodes = comm.world().num_nodes, me = comm.world().node_rank;
      ThreadPool pool(2, CpuLimits());
      std::mt19937_64 random(static_cast<uint64_t>(11 + comm.world().local_rank));
      for (size_t number = 0; number < draws(6, 2); ++number) {
        const auto drawn = [&](int64_t begin, int64_t end) {
          return begin + static_cast<int64_t>(random() % static_cast<uint64_t>(end - begin + 1));
        };
        const int64_t num_experts = drawn(1, 12), top_k = drawn(1, num_experts), max_tokens = drawn(1, 60);
        ExpertRail rail(comm, num_experts, max_tokens * top_k, kWidth * 4, pool);
        for (int chunk = 0; chunk < 4; ++chunk) {
          std::vector<ExpertRows> rows;
          for (int64_t node = 0; node < num_nodes; ++node)
            rows.push_back(rows_of(draw_experts(random, max_tokens, top_k, num_experts), top_k, num_experts));
          const ExpertRows& own = rows[static_cast<size_t>(me)];
          std::vector<float> sent, returned(static_cast<size_t>(own.num_rows() * kWidth), -1);
          for (const int32_t choice : own.choices) {
            for (int64_t column = 0; column < kWidth; ++column) sent.push_back(value_of(me, choice, column));
          }
          const TensorView own_RN(returned.data(), DType::kF32, {own.num_rows(), kWidth});
          const bool has_more = chunk == 1 && me + 1 == num_nodes;
          const ExpertExchange::Agreement agreement = rail.agree(own, has_more);
          EXPECT_EQ(agreement.has_more, chunk == 1);

          // By expert: the rows that arrived in all rounds.
          std::vector<std::vector<float>> arrived(static_cast<size_t>(num_experts));
          for (int64_t round = 0; round < agreement.num_rounds; ++round) {
            const ExpertRows& arriving = rail.arriving(round);
            ASSERT_LE(arriving.num_rows(), ExpertExchange::capacity(max_tokens * top_k, num_nodes));
            std::vector<float> values(static_cast<size_t>(arriving.num_rows() * kWidth));
            const TensorView arrived_QN(values.data(), DType::kF32, {arriving.num_rows(), kWidth});
            rail.send(ConstTensorView(sent.data(), DType::kF32, {own.num_rows(), kWidth}), arrived_QN);
            for (int64_t e = 0; e < num_experts; ++e) {
              const bool is_own = rail.own_experts().begin <= e && e < rail.own_experts().end;
              ASSERT_TRUE(is_own || arriving.begin(e) == arriving.end(e));
              for (int64_t row = arriving.begin(e); row < arriving.end(e); ++row) {
                ASSERT_EQ(arriving.experts[static_cast<size_t>(row)], e);
                arrived[static_cast<size_t>(e)].push_back(values[static_cast<size_t>(row * kWidth)]);
              }
            }
            for (float& value : values) value = -value;
            rail.give_back(arrived_QN, own_RN);
          }
          for (size_t i = 0; i < sent.size(); ++i) ASSERT_EQ(returned[i], -sent[i]) << i;
          for (int64_t e = rail.own_experts().begin; e < rail.own_experts().end; ++e) {
            std::vector<float> expected;
            for (int64_t node = 0; node < num_nodes; ++node) {
              const ExpertRows& of = rows[static_cast<size_t>(node)];
              for (int64_t row = of.begin(e); row < of.end(e); ++row)
                expected.push_back(value_of(node, of.choices[static_cast<size_t>(row)], 0));
            }
            // Rounds take windows of every node's rows: within a node the order stays.
            EXPECT_THAT(arrived[static_cast<size_t>(e)], testing::UnorderedElementsAreArray(expected));
            EXPECT_TRUE(agreement.num_rounds > 1 || arrived[static_cast<size_t>(e)] == expected);
          }
        }
      }
    });
    EXPECT_THAT(errors, Each(IsEmpty())) << nodes << " nodes";
  }
}

TEST(ExpertRail, AllRanksOfARailAbandonAPassTogether) {
  const auto errors = run_communicators(3, 1, {}, [](Communicator& comm) {
    ThreadPool pool(1, CpuLimits());
    ExpertRail rail(comm, 6, 32, kWidth * 4, pool);
    const ExpertRows rows = rows_of({0, 1, 2, 3, 4, 5}, 1, 6);
    EXPECT_TRUE(rail.agree(rows, true).has_more);
    EXPECT_FALSE(rail.is_abandoned());
    if (comm.world().rank == 1) rail.wish_to_abandon();
    EXPECT_FALSE(rail.is_abandoned());
    const ExpertExchange::Agreement agreement = rail.agree(rows, true);
    EXPECT_TRUE(rail.is_abandoned());
    EXPECT_FALSE(agreement.has_more);
    EXPECT_EQ(agreement.num_rounds, 1);
    EXPECT_EQ(rail.arriving(0).num_rows(), 0);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

}  // namespace
}  // namespace tessera
