#include "kernels/cross_entropy/cross_entropy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels/cross_entropy/cross_entropy_expected.h"
#include "kernels/cross_entropy/cross_entropy_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kVocabSizes[] = {1,  2,  3,  4,  5,  7,  8,   9,   15,  16,
                                   17, 31, 32, 33, 63, 65, 255, 256, 257, 3000};

// R rows: normal logits of varying spread, one row with a clear winner, one with huge logits, some ignored.
struct Problem {
  GuardedTensor logits;
  std::vector<int32_t> targets;

  Problem(int64_t R, int64_t V) : logits(DType::kF32, {R, V}) {
    logits.fill_normal(static_cast<uint64_t>(V), 3);
    for (int64_t v = 0; v < V; ++v) {
      if (R > 1) logits.set(V + v, v == V / 2 ? 60.0f : static_cast<float>(-logits[V + v]));
      if (R > 2) logits.set(2 * V + v, static_cast<float>(1000 * logits[2 * V + v] - 5e4));
    }
    for (int64_t r = 0; r < R; ++r) {
      targets.push_back(r % 5 == 3 ? kIgnoredLabel : static_cast<int32_t>((r * 7 + V / 2) % V));
    }
  }

  std::vector<double> row(int64_t r) const { return rows_of(logits.view(), {&r, 1}); }
};

struct Outcome {
  LossSums sums;
  GuardedTensor dlogits;
};

Outcome run(const CrossEntropyKernels& kernels, const Problem& problem, DType dtype, float smoothing,
            float grad_scale, ThreadPool& pool) {
  Outcome outcome = {{}, GuardedTensor(dtype, problem.logits.shape())};
  const TestScratch scratch(cross_entropy_scratch_bytes(problem.logits.shape()[0]));
  outcome.sums = cross_entropy_with(kernels, problem.logits.view(), problem.targets, smoothing, grad_scale,
                                    outcome.dlogits.view(), scratch.span(), pool);
  return outcome;
}

// Columns [first, last) of every row.
GuardedTensor columns_of(const GuardedTensor& all, int64_t first, int64_t last) {
  GuardedTensor part(all.dtype(), {all.shape()[0], last - first});
  for (int64_t i = 0; i < part.num_elements(); ++i) {
    part.set(i, static_cast<float>(all[i / (last - first) * all.shape()[1] + first + i % (last - first)]));
  }
  return part;
}

// Runs the loss in chunks that end at `ends`; gradients are requested in reverse order.
Outcome run_chunks(const CrossEntropyKernels& kernels, const Problem& problem, DType dtype, float smoothing,
                   float grad_scale, const std::vector<int64_t>& ends, ThreadPool& pool) {
  const int64_t R = problem.logits.shape()[0], V = problem.logits.shape()[1];
  Outcome outcome = {{}, GuardedTensor(dtype, problem.logits.shape())};
  SoftmaxRow stale;
  stale.sum_exp = stale.sum = HUGE_VAL;
  std::vector<SoftmaxRow> rows(static_cast<size_t>(R), stale);
  int64_t first = 0;
  for (const int64_t last : ends) {
    const GuardedTensor chunk = columns_of(problem.logits, first, last);
    cross_entropy_add_chunk_with(kernels, chunk.view(), first, problem.targets, smoothing, rows, pool);
    first = last;
  }
  outcome.sums = cross_entropy_loss(rows, problem.targets, V, smoothing);
  for (size_t i = ends.size(); i-- > 0;) {
    first = i == 0 ? 0 : ends[i - 1];
    const GuardedTensor chunk = columns_of(problem.logits, first, ends[i]);
    GuardedTensor dchunk(dtype, chunk.shape());
    cross_entropy_chunk_gradient_with(kernels, chunk.view(), first, V, problem.targets, rows, smoothing,
                                      grad_scale, dchunk.view(), pool);
    EXPECT_TRUE(dchunk.guards_intact());
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t c = first; c < ends[i]; ++c) {
        const double value = dchunk[r * (ends[i] - first) + c - first];
        outcome.dlogits.set(r * V + c, static_cast<float>(value));
      }
    }
  }
  return outcome;
}

// The whole vocabulary, in two parts, and in parts of one, a few and the remaining columns.
std::vector<std::vector<int64_t>> chunk_ends(int64_t V) {
  std::vector<std::vector<int64_t>> all = {{V}};
  if (V > 1) all.push_back({V / 2, V});
  if (V > 20) all.push_back({1, 18, V - 1, V});
  return all;
}

TEST(CrossEntropy, MatchesTheFormulaInEveryImplementation) {
  ThreadPool pool(2);
  constexpr int64_t R = 6;
  for (const auto& implementation : cross_entropy_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t V : kVocabSizes) {
        for (const float smoothing : {0.0f, 0.1f}) {
          const float grad_scale = 0.25f;
          const Problem problem(R, V);
          const std::string context = fmt::format("{} {} V {} smoothing {}", describe(implementation),
                                                  dtype_name(dtype), V, smoothing);
          std::vector<Expected> gradient(R * V);
          double loss = 0, loss_bound = 0;
          int64_t num_targets = 0;
          for (int64_t r = 0; r < R; ++r) {
            const int32_t target = problem.targets[static_cast<size_t>(r)];
            if (target == kIgnoredLabel) continue;
            const std::vector<double> row = problem.row(r);
            const Expected row_loss = expected_loss(row, target, smoothing);
            loss += row_loss.value;
            loss_bound += row_loss.bound;
            ++num_targets;
            const auto row_gradient =
                expected_logits_gradient(row, 0, V, expected_softmax(row), target, smoothing, grad_scale);
            std::copy(row_gradient.begin(), row_gradient.end(), gradient.begin() + r * V);
          }
          const Outcome got = run(implementation.kernels, problem, dtype, smoothing, grad_scale, pool);
          expect_within(got.dlogits, gradient, context);
          EXPECT_NEAR(got.sums.loss_sum, loss, loss_bound + 1e-12) << context;
          EXPECT_EQ(got.sums.num_targets, num_targets) << context;
          for (const std::vector<int64_t>& ends : chunk_ends(V)) {
            const std::string in_chunks = fmt::format("{} in {} chunks", context, ends.size());
            const Outcome chunked =
                run_chunks(implementation.kernels, problem, dtype, smoothing, grad_scale, ends, pool);
            expect_within(chunked.dlogits, gradient, in_chunks);
            EXPECT_NEAR(chunked.sums.loss_sum, loss, loss_bound + 1e-12) << in_chunks;
            EXPECT_EQ(chunked.sums.num_targets, num_targets) << in_chunks;
          }
        }
      }
    }
  }
}

// The gradient against central differences of the loss itself, h = 1e-4: their error is below h^2 for a loss
// whose third derivative is below 1.
TEST(CrossEntropy, GradientIsTheSlopeOfTheLoss) {
  ThreadPool pool(1);
  constexpr double kStep = 1e-4;
  for (const auto& implementation : cross_entropy_table().usable()) {
    for (const float smoothing : {0.0f, 0.2f}) {
      Problem problem(1, 37);
      const Outcome got = run(implementation.kernels, problem, DType::kF32, smoothing, 1.0f, pool);
      const std::vector<double> x = problem.row(0);
      const int32_t target = problem.targets[0];
      const auto bounds = expected_logits_gradient(x, 0, 37, expected_softmax(x), target, smoothing, 1);
      for (size_t v = 0; v < x.size(); ++v) {
        std::vector<double> up = x, down = x;
        up[v] += kStep;
        down[v] -= kStep;
        const double slope =
            (expected_loss(up, target, smoothing).value - expected_loss(down, target, smoothing).value) /
            (2 * kStep);
        EXPECT_NEAR(got.dlogits[static_cast<int64_t>(v)], slope,
                    kStep * kStep + bounds[v].bound + kFloatEps * std::abs(slope))
            << describe(implementation) << " v " << v << " smoothing " << smoothing;
      }
    }
  }
}

TEST(CrossEntropy, GradientMayReplaceTheLogits) {
  ThreadPool pool(2);
  for (const auto& implementation : cross_entropy_table().usable()) {
    for (const int64_t V : {5, 33, 257}) {
      Problem problem(6, V);
      const Outcome apart = run(implementation.kernels, problem, DType::kF32, 0.1f, 0.5f, pool);
      const TestScratch scratch(cross_entropy_scratch_bytes(6));
      const LossSums sums = cross_entropy_with(implementation.kernels, problem.logits.view(), problem.targets,
                                               0.1f, 0.5f, problem.logits.view(), scratch.span(), pool);
      EXPECT_EQ(sums.loss_sum, apart.sums.loss_sum) << describe(implementation);
      EXPECT_TRUE(problem.logits.bits() == apart.dlogits.bits()) << describe(implementation) << " V " << V;
    }
  }
}

TEST(CrossEntropy, LossAloneIsTheSameAndLeavesTheLogits) {
  ThreadPool pool(2);
  for (const auto& implementation : cross_entropy_table().usable()) {
    const Problem problem(6, 333);
    const std::string before = problem.logits.bits();
    const Outcome with_gradient = run(implementation.kernels, problem, DType::kBF16, 0.1f, 1.0f, pool);
    const TestScratch scratch(cross_entropy_scratch_bytes(6));
    const LossSums alone = cross_entropy_with(implementation.kernels, problem.logits.view(), problem.targets,
                                              0.1f, 1.0f, {}, scratch.span(), pool);
    EXPECT_EQ(alone.loss_sum, with_gradient.sums.loss_sum) << describe(implementation);
    EXPECT_EQ(alone.num_targets, with_gradient.sums.num_targets);
    EXPECT_TRUE(problem.logits.bits() == before && problem.logits.guards_intact());
  }
}

TEST(CrossEntropy, IgnoredRowsGiveZeroGradientAndNoLoss) {
  ThreadPool pool(2);
  for (const auto& implementation : cross_entropy_table().usable()) {
    Problem problem(3, 40);
    std::fill(problem.targets.begin(), problem.targets.end(), kIgnoredLabel);
    problem.logits.set(5, NAN);  // must not be read
    const Outcome got = run(implementation.kernels, problem, DType::kBF16, 0.1f, 1.0f, pool);
    EXPECT_EQ(got.sums.loss_sum, 0) << describe(implementation);
    EXPECT_EQ(got.sums.num_targets, 0);
    EXPECT_EQ(got.dlogits.values(), std::vector<double>(120, 0.0));
  }
}

TEST(CrossEntropy, NoRowsGiveNoLoss) {
  ThreadPool pool(2);
  const Problem problem(0, 4);
  const Outcome got = run(cross_entropy_table().chosen(), problem, DType::kF32, 0.0f, 1.0f, pool);
  EXPECT_EQ(got.sums.loss_sum, 0);
  EXPECT_EQ(got.sums.num_targets, 0);
}

// Non-finite values must reach the loss and the gradient, wherever in a vector they are.
TEST(CrossEntropy, NanAndInfinityAreNotHidden) {
  ThreadPool pool(1);
  for (const auto& implementation : cross_entropy_table().usable()) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
      for (const int64_t V : {1, 5, 16, 37, 64, 70}) {
        for (int64_t v = 0; v < V; ++v) {
          Problem problem(2, V);
          problem.logits.set(v, bad);
          problem.targets = {0, static_cast<int32_t>(V - 1)};
          const Outcome got = run(implementation.kernels, problem, DType::kBF16, 0.0f, 1.0f, pool);
          const std::string context = fmt::format("{} {} at {} of {}", describe(implementation), bad, v, V);
          ASSERT_TRUE(std::isnan(got.sums.loss_sum)) << context;
          ASSERT_TRUE(std::isnan(got.dlogits[0]) && std::isnan(got.dlogits[V - 1])) << context;
          ASSERT_FALSE(std::isnan(got.dlogits[V])) << context << ": the other row";
          if (V < 2) continue;
          const Outcome chunked =
              run_chunks(implementation.kernels, problem, DType::kBF16, 0.0f, 1.0f, {V / 2, V}, pool);
          ASSERT_TRUE(std::isnan(chunked.sums.loss_sum)) << context;
          ASSERT_TRUE(std::isnan(chunked.dlogits[0]) && std::isnan(chunked.dlogits[V - 1])) << context;
          ASSERT_FALSE(std::isnan(chunked.dlogits[V])) << context << ": the other row";
        }
      }
    }
    Problem problem(1, 20);
    problem.logits.fill(-kInfinity);
    EXPECT_TRUE(std::isnan(run(implementation.kernels, problem, DType::kF32, 0, 1, pool).sums.loss_sum));
  }
}

TEST(CrossEntropy, MinusInfinityIsAProbabilityOfZero) {
  ThreadPool pool(1);
  for (const auto& implementation : cross_entropy_table().usable()) {
    Problem problem(1, 50);
    problem.logits.fill(0);
    for (int64_t v = 10; v < 50; ++v) problem.logits.set(v, -kInfinity);
    problem.targets = {3};
    const Outcome got = run(implementation.kernels, problem, DType::kF32, 0.0f, 1.0f, pool);
    EXPECT_NEAR(got.sums.loss_sum, std::log(10.0), 300 * kFloatEps) << describe(implementation);
    EXPECT_NEAR(got.dlogits[3], -0.9, 300 * kFloatEps) << describe(implementation);
    EXPECT_EQ(got.dlogits[30], 0) << describe(implementation);
    // Whole chunks of -infinity before and after the finite logits.
    for (int64_t v = 0; v < 50; ++v) problem.logits.set(v, 20 <= v && v < 30 ? 0 : -kInfinity);
    problem.targets = {23};
    const Outcome chunked =
        run_chunks(implementation.kernels, problem, DType::kF32, 0.0f, 1.0f, {20, 27, 31, 50}, pool);
    EXPECT_NEAR(chunked.sums.loss_sum, std::log(10.0), 300 * kFloatEps) << describe(implementation);
    EXPECT_NEAR(chunked.dlogits[23], -0.9, 300 * kFloatEps) << describe(implementation);
    EXPECT_EQ(chunked.dlogits[35], 0) << describe(implementation);
    problem.targets = {30};
    EXPECT_EQ(run(implementation.kernels, problem, DType::kF32, 0.0f, 1.0f, pool).sums.loss_sum, HUGE_VAL);
  }
}

TEST(CrossEntropy, DoesNotDependOnTheNumberOfThreads) {
  for (const auto& implementation : cross_entropy_table().usable()) {
    std::vector<double> losses;
    expect_thread_independent(
        [&](ThreadPool& pool) {
          Outcome got = run(implementation.kernels, Problem(50, 1500), DType::kBF16, 0.1f, 1.0f, pool);
          losses.push_back(got.sums.loss_sum);
          std::vector<GuardedTensor> outputs;
          outputs.push_back(std::move(got.dlogits));
          return outputs;
        },
        describe(implementation));
    EXPECT_EQ(losses, std::vector<double>(losses.size(), losses[0])) << describe(implementation);
  }
}

TEST(CrossEntropy, OneChunkGivesTheBitsOfWholeRows) {
  ThreadPool pool(2);
  for (const auto& implementation : cross_entropy_table().usable()) {
    const Problem problem(7, 1000);
    const Outcome whole = run(implementation.kernels, problem, DType::kBF16, 0.1f, 1.0f, pool);
    const Outcome chunk = run_chunks(implementation.kernels, problem, DType::kBF16, 0.1f, 1.0f, {1000}, pool);
    EXPECT_EQ(chunk.sums.loss_sum, whole.sums.loss_sum) << describe(implementation);
    EXPECT_TRUE(chunk.dlogits.bits() == whole.dlogits.bits()) << describe(implementation);
  }
}

TEST(CrossEntropy, WrongShapesAreBugs) {
  ThreadPool pool(1);
  Problem problem(3, 4);
  GuardedTensor wrong(DType::kF32, {3, 5});
  const TestScratch scratch(cross_entropy_scratch_bytes(3));
  const auto call = [&](TensorView dlogits, std::span<const int32_t> targets, std::span<std::byte> memory) {
    cross_entropy(problem.logits.view(), targets, 0, 1, dlogits, memory, pool);
  };
  EXPECT_THROW(call(wrong.view(), problem.targets, scratch.span()), Error);
  EXPECT_THROW(call({}, std::vector<int32_t>{0}, scratch.span()), Error);
  EXPECT_THROW(call({}, problem.targets, scratch.span().first(8)), Error);
  std::vector<SoftmaxRow> rows(2);
  EXPECT_THROW(cross_entropy_add_chunk(problem.logits.view(), 0, problem.targets, 0, rows, pool), Error);
  rows.resize(3);
  EXPECT_THROW(cross_entropy_chunk_gradient(problem.logits.view(), 2, 5, problem.targets, rows, 0, 1,
                                            problem.logits.view(), pool),
               Error)
      << "four columns from column 2 of 5";
}

}  // namespace
}  // namespace tessera
