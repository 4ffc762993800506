// Nodes that exchange their weights: random layouts, fragments and types, several pieces per group, against
// the formulas of the header computed by one thread.
#include "shard/outer/outer_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>
#include <random>

#include "optim/elementwise.h"
#include "support/draws.h"
#include "support/ranks/rank_test_support.h"

namespace tessera {
namespace {

using testing::Each;
using testing::IsEmpty;

constexpr int64_t kPieceElements = 128;

struct OuterJob {
  ZeroLayout layout;
  ZeroSettings settings;
  uint64_t seed = 0;

  int64_t num_elements() const { return layout.groups.back().end; }
  std::string describe() const {
    return fmt::format("seed {}: {} nodes of {} ranks, {} fragments, delay {}, alpha {}, {}, {}", seed,
                       layout.num_nodes, layout.local_world_size, settings.outer->num_fragments,
                       settings.outer->sync_delay, settings.outer->update_alpha,
                       dtype_name(settings.network_dtype),
                       settings.quantized_gradients ? "quantised" : "exact");
  }
};

int64_t drawn_between(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

OuterJob random_outer_job(uint64_t seed) {
  std::mt19937_64 random(seed);
  OuterJob job;
  job.seed = seed;
  job.layout.num_nodes = static_cast<int>(drawn_between(random, 1, 4));
  job.layout.local_world_size = static_cast<int>(drawn_between(random, 1, 2));
  job.layout.alignment = 32;
  int64_t at = 0;
  for (int64_t group = drawn_between(random, 3, 6); group > 0; --group) {
    const int64_t size = drawn_between(random, 1, 1500);
    job.layout.groups.push_back({at, at + size});
    at = round_up(at + size, job.layout.alignment);
  }
  OuterSettings outer;
  outer.num_fragments = drawn_between(random, 1, 3);
  outer.sync_every = drawn_between(random, outer.num_fragments, 6);
  outer.sync_delay = drawn_between(random, 0, (outer.sync_every - 1) / outer.num_fragments);
  outer.update_alpha = random() % 2 == 0 ? 0 : 0.5;
  outer.learning_rate = 0.7;
  outer.momentum = random() % 4 == 0 ? 0 : 0.9;
  job.settings.outer = outer;
  job.settings.state_tensors = AdamW::kStateTensors;
  job.settings.network_dtype = random() % 2 == 0 ? DType::kBF16 : DType::kF32;
  if (random() % 3 == 0)
    job.settings.quantized_gradients = random() % 2 == 0 ? GradientCode::kInt8 : GradientCode::kInt4;
  return job;
}

// The change that a node has made before its weights are exchanged for the round-th time.
float learnt(uint64_t seed, int64_t round, int node, int64_t element) {
  std::mt19937_64 random(seed * 1'000'003 + static_cast<uint64_t>((round * 16 + node) * 100'003 + element));
  return std::uniform_real_distribution<float>(-0.01f, 0.01f)(random);
}
float start_weight(int64_t element) { return std::sin(static_cast<float>(element)); }

// One element on all nodes.
struct ExpectedElement {
  double outer, momentum = 0;
  std::vector<double> of_node;
};

void expect_exchange(const OuterJob& job, int64_t round, int64_t element, ExpectedElement* of) {
  const OuterSettings& outer = *job.settings.outer;
  double difference = 0;
  for (int node = 0; node < job.layout.num_nodes; ++node) {
    double& own = of->of_node[static_cast<size_t>(node)];
    own += learnt(job.seed, round, node, element);
    difference += (of->outer - own) / job.layout.num_nodes;
  }
  of->momentum = outer.momentum * of->momentum + difference;
  of->outer -= outer.learning_rate * (difference + outer.momentum * of->momentum);
  for (double& own : of->of_node) own = of->outer + outer.update_alpha * (own - of->outer);
}

constexpr int64_t kNumRounds = 3;

// A rank of the job; throws what differs.
class OuterRank {
 public:
  OuterRank(const OuterJob& job, Communicator& comm)
      : job_(job),
        node_(comm.world().node_rank),
        outer_(OuterPlan(job.layout, job.settings, comm.world().local_rank, kPieceElements), job.settings,
               comm.rail(), pool_),
        weights_(static_cast<size_t>(job.num_elements())) {
    for (int64_t i = 0; i < job.num_elements(); ++i) weights_[static_cast<size_t>(i)] = start_weight(i);
    for (int64_t piece = 0; piece < outer_.plan().num_pieces(); ++piece)
      outer_.write(OuterOptimizer::Kept::kWeights, outer_.plan().piece(piece).begin, of_piece(piece));
  }

  void run() {
    for (int64_t round = 0; round < kNumRounds; ++round) {
      for (int64_t fragment = 0; fragment < outer_.plan().num_fragments(); ++fragment)
        exchange(fragment, round);
    }
  }

  // Compares outer and own weights of the elements it keeps, and the momentum of those it owns.
  void compare(const std::vector<ExpectedElement>& expected, double tolerance) const {
    std::vector<float> found(static_cast<size_t>(job_.num_elements()));
    for (int64_t piece = 0; piece < outer_.plan().num_pieces(); ++piece) {
      const Part range = outer_.plan().piece(piece);
      outer_.read(OuterOptimizer::Kept::kWeights, range.begin, part_of(found, range));
      for (int64_t i = range.begin; i < range.end; ++i) {
        const ExpectedElement& of = expected[static_cast<size_t>(i)];
        expect_near("outer weight", i, found[static_cast<size_t>(i)], of.outer, tolerance);
        expect_near("weight", i, weights_[static_cast<size_t>(i)], of.of_node[static_cast<size_t>(node_)],
                    tolerance);
      }
      const Part own = outer_.plan().owned(piece, node_);
      outer_.read(OuterOptimizer::Kept::kMomentum, own.begin, part_of(found, own));
      for (int64_t i = own.begin; i < own.end; ++i)
        expect_near("momentum", i, found[static_cast<size_t>(i)], expected[static_cast<size_t>(i)].momentum,
                    tolerance);
    }
  }

  // Stores the outer weights that this rank keeps, by element.
  void take_outer(std::vector<float>* by_element) const {
    for (int64_t piece = 0; piece < outer_.plan().num_pieces(); ++piece)
      outer_.read(OuterOptimizer::Kept::kWeights, outer_.plan().piece(piece).begin,
                  part_of(*by_element, outer_.plan().piece(piece)));
  }

 private:
  static std::span<float> part_of(std::vector<float>& values, const Part& part) {
    return std::span(values).subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.size()));
  }
  std::span<float> of_piece(int64_t piece) { return part_of(weights_, outer_.plan().piece(piece)); }

  static void expect_near(const char* what, int64_t element, double found, double expected,
                          double tolerance) {
    if (std::abs(found - expected) > tolerance)
      throw std::runtime_error(fmt::format("{} {}: {}, expected {}", what, element, found, expected));
  }

  void exchange(int64_t fragment, int64_t round) {
    const NodeWeights weights = {[this](int64_t begin, std::span<float> values) {
                                   std::copy_n(weights_.begin() + begin, values.size(), values.begin());
                                 },
                                 [this](int64_t begin, std::span<const float> values) {
                                   std::ranges::copy(values, weights_.begin() + begin);
                                 }};
    const std::vector<int64_t>& pieces = outer_.plan().fragment(fragment);
    for (const int64_t piece : pieces) {
      const Part range = outer_.plan().piece(piece);
      for (int64_t i = range.begin; i < range.end; ++i)
        weights_[static_cast<size_t>(i)] += learnt(job_.seed, round, node_, i);
    }
    const double alpha = job_.settings.outer->update_alpha;
    if (job_.settings.outer->sync_delay > 0) {
      for (const int64_t piece : pieces) outer_.begin(piece, weights);
      for (const int64_t piece : pieces) outer_.step(piece);
      for (const int64_t piece : pieces) outer_.finish(piece, weights, alpha);
      return;
    }
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i == 0) outer_.begin(pieces[i], weights);
      if (i + 1 < pieces.size()) outer_.begin(pieces[i + 1], weights);
      outer_.step(pieces[i]);
      outer_.finish(pieces[i], weights, alpha);
    }
  }

  const OuterJob& job_;
  int node_;
  ThreadPool pool_{1};
  OuterOptimizer outer_;
  std::vector<float> weights_;
};

// A difference of 0.05 is rounded to 8 bits with an error of 2^-9 of it, in int4 to 1/14 of the largest of a
// block; the outer step makes 1.33 of it, and what remains of an error is sent along.
double tolerance_of(const OuterJob& job) {
  if (job.settings.quantized_gradients == GradientCode::kInt4) return 2e-2;
  if (job.settings.quantized_gradients) return 2e-3;
  return job.settings.network_dtype == DType::kBF16 ? 5e-4 : 1e-6;
}

class OuterOptimizerTest : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, OuterOptimizerTest, testing::Range<uint64_t>(0, draws(24)));

TEST_P(OuterOptimizerTest, FollowsItsFormulasOnRandomJobs) {
  const OuterJob job = random_outer_job(GetParam());
  SCOPED_TRACE(job.describe());
  const auto num_nodes = static_cast<size_t>(job.layout.num_nodes);
  std::vector<ExpectedElement> expected;
  for (int64_t i = 0; i < job.num_elements(); ++i) {
    expected.push_back({start_weight(i), 0, std::vector<double>(num_nodes, start_weight(i))});
    for (int64_t round = 0; round < kNumRounds; ++round) expect_exchange(job, round, i, &expected.back());
  }
  std::mutex mutex;
  std::vector<std::vector<float>> outer(num_nodes, std::vector<float>(expected.size()));
  CommOptions options;
  options.timeout = std::chrono::seconds(30);
  const std::vector<std::string> errors =
      run_communicators(job.layout.num_nodes, job.layout.local_world_size, options, [&](Communicator& comm) {
        OuterRank rank(job, comm);
        rank.run();
        rank.compare(expected, tolerance_of(job));
        const std::lock_guard lock(mutex);
        rank.take_outer(&outer[static_cast<size_t>(comm.world().node_rank)]);
      });
  EXPECT_THAT(errors, Each(IsEmpty()));
  for (const std::vector<float>& of_node : outer) EXPECT_EQ(of_node, outer.front());  // the same bits
}

// Over all ranks every element is kept once on every node and owned once in all.
TEST_P(OuterOptimizerTest, PiecesCoverEverythingOnce) {
  const OuterJob job = random_outer_job(GetParam());
  SCOPED_TRACE(job.describe());
  std::vector<int> kept(static_cast<size_t>(job.num_elements())), owned(kept.size()), exchanged(kept.size());
  const auto count = [](std::vector<int>& counts, const Part& part) {
    for (int64_t i = part.begin; i < part.end; ++i) ++counts[static_cast<size_t>(i)];
  };
  for (int local_rank = 0; local_rank < job.layout.local_world_size; ++local_rank) {
    const OuterPlan plan(job.layout, job.settings, local_rank, kPieceElements);
    for (int64_t piece = 0; piece < plan.num_pieces(); ++piece) {
      count(kept, plan.piece(piece));
      EXPECT_LE(plan.buffer_begin(piece) + plan.piece(piece).size(), plan.num_buffered());
      for (int node = 0; node < plan.num_nodes(); ++node) count(owned, plan.owned(piece, node));
    }
    for (int64_t fragment = 0; fragment < plan.num_fragments(); ++fragment) {
      for (const int64_t piece : plan.fragment(fragment)) count(exchanged, plan.piece(piece));
    }
  }
  for (const Part& group : job.layout.groups) {
    for (int64_t i = group.begin; i < group.end; ++i) {
      ASSERT_EQ(kept[static_cast<size_t>(i)], 1) << i;
      ASSERT_EQ(owned[static_cast<size_t>(i)], 1) << i;
      ASSERT_EQ(exchanged[static_cast<size_t>(i)], 1) << i;
    }
  }
}

TEST(OuterPlanTest, FragmentsTakeTurns) {
  OuterJob job = random_outer_job(0);
  job.settings.outer = OuterSettings{.sync_every = 6, .num_fragments = 3};
  const OuterPlan plan(job.layout, job.settings, 0);
  std::vector<std::string> begun;
  for (int64_t update = 0; update <= 12; ++update) {
    std::string fragments;
    for (int64_t fragment = 0; fragment < 3; ++fragment) {
      if (plan.begins(fragment, update)) fragments += std::to_string(fragment);
    }
    begun.push_back(fragments);
  }
  EXPECT_THAT(begun, testing::ElementsAre("", "", "1", "", "2", "", "0", "", "1", "", "2", "", "0"));
}

}  // namespace
}  // namespace tessera
