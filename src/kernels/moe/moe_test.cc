#include "kernels/moe/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "kernels/moe/moe_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

// Around every vector length, and more than one parallel block.
constexpr int64_t kWidths[] = {1, 3, 4, 5, 8, 9, 15, 16, 17, 31, 33, 64, 65, 257};

ExpertRows random_rows(int64_t num_tokens, int64_t top_k, int64_t num_experts, uint64_t seed) {
  ExpertRows rows;
  rows.resize(num_tokens, top_k, num_experts);
  const CounterRng rng(seed, 0);
  std::vector<int32_t> all(static_cast<size_t>(num_experts));
  for (int64_t t = 0; t < num_tokens; ++t) {
    std::iota(all.begin(), all.end(), 0);
    for (int64_t j = 0; j < top_k; ++j) {
      const auto left = static_cast<double>(num_experts - j);
      const auto at = static_cast<int64_t>(rng.uniform(static_cast<uint64_t>(t * top_k + j)) * left);
      std::swap(all[static_cast<size_t>(j)], all[static_cast<size_t>(j + at)]);
      rows.experts[static_cast<size_t>(t * top_k + j)] = all[static_cast<size_t>(j)];
    }
  }
  rows.group();
  return rows;
}

TEST(ExpertRows, AreGroupedByExpertInTheOrderOfTheTokens) {
  ExpertRows rows;
  rows.resize(3, 2, 4);
  rows.experts = {3, 0, 0, 1, 3, 0};
  rows.group();
  EXPECT_EQ(rows.starts, (std::vector<int32_t>{0, 3, 4, 4, 6}));
  EXPECT_EQ(rows.choices, (std::vector<int32_t>{1, 2, 5, 3, 0, 4}));
  EXPECT_EQ(rows.rows, (std::vector<int32_t>{4, 0, 1, 3, 5, 2}));
  rows.spread_evenly();
  EXPECT_EQ(rows.starts, (std::vector<int32_t>{0, 2, 4, 5, 6}));
}

// The choices of torch.topk of 2.15 on the CPU among equal values, which follow from the algorithms of the
// standard library: neither ascending nor descending.
TEST(Route, BreaksTiesAsTorchDoes) {
  ThreadPool pool(1);
  const auto choices = [&](int64_t num_experts, int64_t top_k) {
    GuardedTensor p(DType::kF32, {1, num_experts}), w(DType::kF32, {1, top_k});
    p.fill(0.5f);
    ExpertRows rows;
    rows.resize(1, top_k, num_experts);
    route(p.view(), ExpertWeights::kNormalized, w.view(), rows, nullptr, pool);
    return rows.experts;
  };
  EXPECT_EQ(choices(8, 2), (std::vector<int32_t>{6, 5}));
  EXPECT_EQ(choices(128, 8), (std::vector<int32_t>{84, 87, 86, 85, 82, 81, 88, 83}));
  EXPECT_EQ(choices(128, 1), (std::vector<int32_t>{0}));
}

struct Router {
  int64_t num_tokens, num_experts, top_k;
  ExpertWeights form;
};
constexpr ExpertWeights kPlain = ExpertWeights::kProbabilities, kNormal = ExpertWeights::kNormalized,
                        kChosen = ExpertWeights::kSoftmaxOfChosen;
constexpr Router kRouters[] = {{5, 4, 1, kPlain},     {7, 4, 1, kNormal}, {33, 8, 2, kNormal},
                               {9, 8, 3, kPlain},     {3, 5, 5, kNormal}, {70, 128, 8, kNormal},
                               {70, 128, 4, kChosen}, {9, 4, 2, kChosen}, {5, 4, 1, kChosen}};

std::string to_string(const Router& router) {
  return fmt::format("{} tokens, {} of {} experts, weights of kind {}", router.num_tokens, router.top_k,
                     router.num_experts, static_cast<int>(router.form));
}

// Probabilities of a row, and the weights of these choices.
std::vector<double> softmax(const std::vector<double>& logits) {
  std::vector<double> p;
  const double max = *std::ranges::max_element(logits);
  for (const double logit : logits) p.push_back(std::exp(logit - max));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= sum;
  return p;
}
std::vector<double> weights_of(const std::vector<double>& p, std::span<const int32_t> chosen,
                               ExpertWeights form) {
  std::vector<double> w;
  for (const int32_t e : chosen) w.push_back(p[static_cast<size_t>(e)]);
  const double sum = form != kPlain ? std::accumulate(w.begin(), w.end(), 0.0) : 1;
  for (double& value : w) value /= sum;
  return w;
}

TEST(Route, ChoosesTheMostProbableExperts) {
  ThreadPool pool(2);
  for (const Router& router : kRouters) {
    const auto [T, E, K, form] = router;
    GuardedTensor p(DType::kF32, {T, E}), w(DType::kF32, {T, K});
    p.fill_normal(static_cast<uint64_t>(E), 2);
    const std::vector<double> logits = p.values();
    ExpertRows rows;
    rows.resize(T, K, E);
    RouterLoad load;
    load.reset(E);
    route(p.view(), form, w.view(), rows, &load, pool);
    EXPECT_TRUE(p.guards_intact() && w.guards_intact()) << to_string(router);
    std::vector<double> sums(static_cast<size_t>(E));
    for (int64_t t = 0; t < T; ++t) {
      const std::vector<double> expected = softmax({logits.begin() + t * E, logits.begin() + (t + 1) * E});
      const std::span<const int32_t> chosen(rows.experts.data() + t * K, static_cast<size_t>(K));
      std::vector<double> sorted = expected;
      std::ranges::sort(sorted, std::greater());
      const std::vector<double> expected_w = weights_of(expected, chosen, form);
      for (int64_t e = 0; e < E; ++e) {
        sums[static_cast<size_t>(e)] += expected[static_cast<size_t>(e)];
        EXPECT_NEAR(p[t * E + e], expected[static_cast<size_t>(e)], 1e-6) << to_string(router);
      }
      for (int64_t j = 0; j < K; ++j) {
        const auto e = static_cast<size_t>(chosen[static_cast<size_t>(j)]);
        EXPECT_EQ(expected[e], sorted[static_cast<size_t>(j)]) << to_string(router) << " token " << t;
        EXPECT_NEAR(w[t * K + j], expected_w[static_cast<size_t>(j)], 1e-6) << to_string(router);
      }
    }
    EXPECT_EQ(load.num_tokens, T);
    EXPECT_EQ(std::accumulate(load.count.begin(), load.count.end(), int64_t{0}), T * K);
    for (int64_t e = 0; e < E; ++e) {
      EXPECT_NEAR(load.probability[static_cast<size_t>(e)], sums[static_cast<size_t>(e)],
                  1e-6 * static_cast<double>(T));
    }
  }
}

// The loss sum over t, j of dw_tj w_tj, plus the loss of the balance with the counts held fixed, in double.
TEST(RouteBackward, AgreesWithDifferences) {
  ThreadPool pool(2);
  for (const Router& router : kRouters) {
    const int64_t T = router.num_tokens, E = router.num_experts, K = router.top_k;
    const ExpertWeights form = router.form;
    GuardedTensor p(DType::kF32, {T, E}), w(DType::kF32, {T, K}), dw(DType::kF32, {T, K});
    GuardedTensor dl(DType::kF32, {T, E});
    p.fill_normal(static_cast<uint64_t>(E) + 7);
    dw.fill_normal(3);
    const std::vector<double> logits = p.values();
    ExpertRows rows;
    rows.resize(T, K, E);
    RouterLoad load;
    load.reset(E);
    route(p.view(), form, w.view(), rows, &load, pool);
    const double coefficient = 0.7;
    std::vector<float> balance(static_cast<size_t>(E));
    load.balance_gradient(coefficient, balance);
    route_backward(p.view(), rows, form, w.view(), dw.view(), balance, dl.view(), pool);
    EXPECT_TRUE(dl.guards_intact());
    const auto loss_of_token = [&](int64_t t, const std::vector<double>& row) {
      const std::vector<double> probabilities = softmax(row);
      const std::span<const int32_t> chosen(rows.experts.data() + t * K, static_cast<size_t>(K));
      const std::vector<double> weights = weights_of(probabilities, chosen, form);
      double loss = 0;
      for (int64_t j = 0; j < K; ++j) loss += dw[t * K + j] * weights[static_cast<size_t>(j)];
      for (int64_t e = 0; e < E; ++e) {
        loss += coefficient * static_cast<double>(E) *
                static_cast<double>(load.count[static_cast<size_t>(e)]) *
                probabilities[static_cast<size_t>(e)] / static_cast<double>(T * T);
      }
      return loss;
    };
    for (int64_t t = 0; t < T; ++t) {
      std::vector<double> row(logits.begin() + t * E, logits.begin() + (t + 1) * E);
      for (int64_t e = 0; e < E; ++e) {
        const double h = 1e-4;
        double& logit = row[static_cast<size_t>(e)];
        const double at = logit;
        logit = at + h;
        const double above = loss_of_token(t, row);
        logit = at - h;
        const double below = loss_of_token(t, row);
        logit = at;
        EXPECT_NEAR(dl[t * E + e], (above - below) / (2 * h), 1e-5) << to_string(router) << " token " << t;
      }
    }
  }
}

TEST(RouterLoad, LossIsOneForEqualLoads) {
  RouterLoad load;
  load.reset(4);
  EXPECT_EQ(load.balance_loss(), 0);
  load.count = {2, 2, 2, 2};
  load.probability = {2, 2, 2, 2};
  load.num_tokens = 8;
  EXPECT_DOUBLE_EQ(load.balance_loss(), 1);
  load.count = {8, 0, 0, 0};
  load.probability = {8, 0, 0, 0};
  EXPECT_DOUBLE_EQ(load.balance_loss(), 4);
}

TEST(ExpertRows, GatherCopiesTheTokens) {
  ThreadPool pool(2);
  for (const DType dtype : kActivationTypes) {
    const ExpertRows rows = random_rows(50, 3, 7, 1);
    GuardedTensor x(dtype, {50, 33}), gathered(dtype, {150, 33});
    x.fill_normal(1);
    gather_expert_rows(x.view(), rows, gathered.view(), pool);
    EXPECT_TRUE(gathered.guards_intact());
    for (int64_t r = 0; r < 150; ++r) {
      for (int64_t d = 0; d < 33; ++d) {
        ASSERT_EQ(gathered[r * 33 + d], x[rows.choices[static_cast<size_t>(r)] / 3 * 33 + d]) << "row " << r;
      }
    }
  }
}

TEST(CombineExpertRows, IsTheWeightedSumInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : moe_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t D : kWidths) {
        const ExpertRows rows = random_rows(37, 3, 5, static_cast<uint64_t>(D));
        GuardedTensor y(dtype, {37 * 3, D}), w(DType::kF32, {37, 3});
        y.fill_normal(1);
        w.fill_normal(2);
        for (const bool is_weighted : {true, false}) {
          for (const Update update : {Update::kOverwrite, Update::kAdd}) {
            GuardedTensor sum(dtype, {37, D});
            if (update == Update::kAdd) sum.fill_normal(3);
            std::vector<Expected> expected;
            for (int64_t i = 0; i < 37 * D; ++i) {
              expected.push_back(expected_sum(3, update == Update::kAdd ? sum[i] : 0, [&](int64_t j) {
                const int64_t choice = i / D * 3 + j;
                const double of_expert = y[rows.rows[static_cast<size_t>(choice)] * D + i % D];
                return (is_weighted ? w[choice] : 1) * of_expert;
              }));
            }
            implementation.kernels.combine(y.view(), rows, is_weighted ? w.view() : TensorView(), sum.view(),
                                           update, pool);
            expect_within(sum, expected,
                          fmt::format("{} {} D {}", describe(implementation), dtype_name(dtype), D));
          }
        }
      }
    }
  }
}

TEST(WeighExpertRows, MultipliesAndScalesInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : moe_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t F : kWidths) {
        const ExpertRows rows = random_rows(11, 2, 5, static_cast<uint64_t>(F));
        GuardedTensor a(dtype, {22, F}), b(dtype, {22, F}), w(DType::kF32, {11, 2}), dw(DType::kF32, {11, 2});
        a.fill_normal(1);
        b.fill_normal(2);
        w.fill_normal(3);
        std::vector<Expected> expected_a, expected_b, expected_dw;
        for (int64_t i = 0; i < 22 * F; ++i) {
          const double weight = w[rows.choices[static_cast<size_t>(i / F)]];
          expected_a.push_back({a[i] * weight, 0});
          expected_b.push_back({b[i] * weight, 0});
        }
        for (int64_t choice = 0; choice < 22; ++choice) {
          const int64_t r = rows.rows[static_cast<size_t>(choice)];
          expected_dw.push_back(expected_sum(F, 0, [&](int64_t f) { return a[r * F + f] * b[r * F + f]; }));
        }
        implementation.kernels.weigh(rows, w.view(), a.view(), b.view(), dw.view(), pool);
        const std::string context = fmt::format("{} {} F {}", describe(implementation), dtype_name(dtype), F);
        expect_within(a, expected_a, context);
        expect_within(b, expected_b, context);
        expect_within(dw, expected_dw, context);
      }
    }
  }
}

TEST(ExpertBias, IsAddedToTheRowsOfItsExpertInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : moe_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t N : kWidths) {
        // Some experts without rows.
        const ExpertRows rows = random_rows(3, 2, 9, static_cast<uint64_t>(N));
        GuardedTensor b(dtype, {9, N}), y(dtype, {6, N});
        b.fill_normal(1);
        y.fill_normal(2);
        std::vector<Expected> expected;
        for (int64_t i = 0; i < 6 * N; ++i) {
          const int64_t e = rows.experts[static_cast<size_t>(rows.choices[static_cast<size_t>(i / N)])];
          expected.push_back({y[i] + b[e * N + i % N], 0});
        }
        implementation.kernels.add_bias(rows, b.view(), y.view(), pool);
        expect_within(y, expected, fmt::format("{} {} N {}", describe(implementation), dtype_name(dtype), N));
      }
    }
  }
}

TEST(ExpertBias, GradientsAreTheFormulasInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : moe_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t N : {int64_t{1}, int64_t{17}, int64_t{64}, int64_t{1100}}) {
        for (const bool is_weighted : {true, false}) {
          for (const Update update : {Update::kOverwrite, Update::kAdd}) {
            const ExpertRows rows = random_rows(21, 2, 30, static_cast<uint64_t>(N));
            GuardedTensor g(dtype, {42, N}), b(dtype, {30, N}), w(DType::kF32, {21, 2});
            GuardedTensor dw(DType::kF32, {21, 2}), db(DType::kF32, {30, N});
            g.fill_normal(1);
            b.fill_normal(2);
            w.fill_normal(3);
            dw.fill_normal(4);
            if (update == Update::kAdd) db.fill_normal(5);
            std::vector<Expected> expected_db, expected_dw;
            for (int64_t i = 0; i < 30 * N; ++i) {
              const int64_t e = i / N, first = rows.begin(e);
              expected_db.push_back(
                  expected_sum(rows.end(e) - first, update == Update::kAdd ? db[i] : 0, [&](int64_t r) {
                    const double weight = is_weighted ? w[rows.choices[static_cast<size_t>(first + r)]] : 1;
                    return weight * g[(first + r) * N + i % N];
                  }));
            }
            for (int64_t choice = 0; choice < 42; ++choice) {
              const int64_t r = rows.rows[static_cast<size_t>(choice)];
              const int64_t e = rows.experts[static_cast<size_t>(choice)];
              expected_dw.push_back(
                  expected_sum(N, dw[choice], [&](int64_t n) { return g[r * N + n] * b[e * N + n]; }));
            }
            implementation.kernels.bias_backward(rows, g.view(), is_weighted ? w.view() : TensorView(),
                                                 b.view(), dw.view(), db.view(), update, pool);
            const std::string context =
                fmt::format("{} {} N {}", describe(implementation), dtype_name(dtype), N);
            expect_within(db, expected_db, context);
            expect_within(dw, expected_dw, context);
          }
        }
      }
    }
  }
}

// The logits of other experts have no part in the weights of the chosen, so that they have no gradient at
// all.
TEST(RouteBackward, LogitsOutsideTheSoftmaxOfTheChosenHaveNoGradient) {
  ThreadPool pool(1);
  GuardedTensor p(DType::kF32, {40, 6}), w(DType::kF32, {40, 2}), dw(DType::kF32, {40, 2});
  GuardedTensor dl(DType::kF32, {40, 6});
  p.fill_normal(1);
  dw.fill_normal(2);
  ExpertRows rows;
  rows.resize(40, 2, 6);
  route(p.view(), kChosen, w.view(), rows, nullptr, pool);
  route_backward(p.view(), rows, kChosen, w.view(), dw.view(), {}, dl.view(), pool);
  for (int64_t i = 0; i < 40 * 6; ++i) {
    const int32_t* chosen = rows.experts.data() + i / 6 * 2;
    const bool is_chosen = chosen[0] == i % 6 || chosen[1] == i % 6;
    EXPECT_EQ(dl[i] != 0, is_chosen) << "token " << i / 6 << " expert " << i % 6;
  }
}

TEST(Moe, DoesNotDependOnTheNumberOfThreads) {
  const ExpertRows rows = random_rows(500, 2, 7, 5);
  for (const auto& implementation : moe_table().usable()) {
    GuardedTensor y(DType::kBF16, {1000, 70}), w(DType::kF32, {500, 2});
    y.fill_normal(5);
    w.fill_normal(6);
    expect_thread_independent(
        [&](ThreadPool& pool) {
          std::vector<GuardedTensor> outputs;
          outputs.emplace_back(DType::kBF16, Shape{500, 70});
          outputs.emplace_back(DType::kF32, Shape{500, 2});
          GuardedTensor a = y, b = y;
          implementation.kernels.combine(y.view(), rows, w.view(), outputs[0].view(), Update::kOverwrite,
                                         pool);
          implementation.kernels.weigh(rows, w.view(), a.view(), b.view(), outputs[1].view(), pool);
          outputs.push_back(a);
          outputs.emplace_back(DType::kF32, Shape{7, 70});
          GuardedTensor biases(DType::kBF16, {7, 70});
          biases.fill_normal(7);
          implementation.kernels.add_bias(rows, biases.view(), a.view(), pool);
          implementation.kernels.bias_backward(rows, a.view(), w.view(), biases.view(), outputs[1].view(),
                                               outputs.back().view(), Update::kOverwrite, pool);
          return outputs;
        },
        describe(implementation));
  }
}

TEST(Moe, RefusesMismatchedShapes) {
  ThreadPool pool(1);
  const ExpertRows rows = random_rows(4, 2, 3, 1);
  GuardedTensor x(DType::kF32, {4, 5}), too_few(DType::kF32, {7, 5}), w(DType::kF32, {4, 2});
  EXPECT_THROW(gather_expert_rows(x.view(), rows, too_few.view(), pool), Error);
  EXPECT_THROW(combine_expert_rows(too_few.view(), rows, w.view(), x.view(), Update::kAdd, pool), Error);
  GuardedTensor biases(DType::kF32, {2, 5}), y(DType::kF32, {8, 5});
  EXPECT_THROW(add_expert_bias(rows, biases.view(), y.view(), pool), Error);
  ExpertRows bad = rows;
  bad.experts.front() = 3;
  EXPECT_THROW(bad.group(), Error);
  EXPECT_THROW(bad.resize(4, 4, 3), Error);
}

}  // namespace
}  // namespace tessera
