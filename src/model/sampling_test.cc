#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "base/error.h"
#include "model/sampling.h"

namespace tessera {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int32_t sample(const std::vector<float>& logits, const SamplingOptions& options, uint64_t index = 0,
               const std::vector<int32_t>& history = {}) {
  std::vector<float> scratch;
  return sample_token(logits, history, options, index, &scratch);
}

// Fraction of each token among `count` draws.
std::vector<double> frequencies(const std::vector<float>& logits, const SamplingOptions& options,
                                int64_t count, const std::vector<int32_t>& history = {}) {
  std::vector<double> shares(logits.size(), 0);
  std::vector<float> scratch;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t token = sample_token(logits, history, options, static_cast<uint64_t>(i), &scratch);
    shares[static_cast<size_t>(token)] += 1.0 / static_cast<double>(count);
  }
  return shares;
}

std::set<int32_t> possible_tokens(const std::vector<float>& logits, const SamplingOptions& options,
                                  const std::vector<int32_t>& history = {}) {
  std::set<int32_t> tokens;
  const auto shares = frequencies(logits, options, 2000, history);
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] > 0) tokens.insert(static_cast<int32_t>(i));
  }
  return tokens;
}

std::vector<float> log_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)) + 3.0f);
  return logits;
}

TEST(SampleToken, TemperatureZeroTakesTheFirstLargest) {
  EXPECT_EQ(sample({1, 5, -2, 5}, {.temperature = 0}), 1);
  EXPECT_EQ(sample({-kInfinity, -4, -3}, {.temperature = 0}), 2);
}

TEST(SampleToken, FrequenciesFollowTheSoftmaxOfLogitsOverTemperature) {
  const std::vector<float> logits = {0.5f, -1.0f, 2.0f, 0.0f};
  constexpr int64_t kCount = 40000;
  for (const double temperature : {0.7, 1.0, 2.0}) {
    const auto shares = frequencies(logits, {.temperature = temperature}, kCount);
    double total = 0;
    for (const float logit : logits) total += std::exp(logit / temperature);
    for (size_t i = 0; i < logits.size(); ++i) {
      const double p = std::exp(logits[i] / temperature) / total;
      // Five standard deviations of a binomial share.
      EXPECT_NEAR(shares[i], p, 5 * std::sqrt(p * (1 - p) / kCount))
          << "token " << i << " at " << temperature;
    }
  }
}

TEST(SampleToken, DependsOnSeedAndIndexOnly) {
  const std::vector<float> logits(64, 0.0f);
  std::vector<float> scratch;
  int64_t different = 0;
  for (uint64_t index = 0; index < 50; ++index) {
    const int32_t token = sample_token(logits, {}, {.seed = 1}, index, &scratch);
    EXPECT_EQ(token, sample(logits, {.seed = 1}, index)) << index;
    different += token != sample(logits, {.seed = 2}, index);
  }
  EXPECT_GT(different, 40);
}

TEST(SampleToken, TopKKeepsTheLargestAndTies) {
  EXPECT_EQ(possible_tokens({1, 1.2f, 0.9f, 1.1f}, {.top_k = 2}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(possible_tokens({1, 1, 0.9f, 1.1f}, {.top_k = 2}), (std::set<int32_t>{0, 1, 3}));
  EXPECT_EQ(possible_tokens({1, 1, 1}, {.top_k = 100}), (std::set<int32_t>{0, 1, 2}));
}

TEST(SampleToken, TopPKeepsTheSmallestSetThatReachesP) {
  const auto logits = log_of({0.1, 0.5, 0.15, 0.25});
  EXPECT_EQ(possible_tokens(logits, {.top_p = 0.45}), (std::set<int32_t>{1}));
  EXPECT_EQ(possible_tokens(logits, {.top_p = 0.7}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(possible_tokens(logits, {.top_p = 0.8}), (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(possible_tokens(logits, {.top_p = 0.95}), (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(possible_tokens(logits, {.top_p = 0.0}), (std::set<int32_t>{1}));
}

TEST(SampleToken, TopPAmongEqualScoresKeepsAsManyAsNeeded) {
  EXPECT_EQ(possible_tokens({0, 0, 0, 0}, {.top_p = 0.6}).size(), 3u);
}

TEST(SampleToken, TopPIsAppliedToWhatTopKLeaves) {
  // The first two of 0.4, 0.3, 0.2, 0.1 become 0.57 and 0.43: the first alone reaches 0.5.
  EXPECT_EQ(possible_tokens(log_of({0.4, 0.3, 0.2, 0.1}), {.top_k = 2, .top_p = 0.5}),
            (std::set<int32_t>{0}));
}

TEST(SampleToken, RepetitionPenaltyDividesPositiveAndMultipliesNegativeOnce) {
  const SamplingOptions greedy = {.temperature = 0, .repetition_penalty = 2};
  EXPECT_EQ(sample({4, 3, 1}, greedy, 0, {0}), 1);
  EXPECT_EQ(sample({4, 1.9f, 1}, greedy, 0, {0, 0, 0}), 0);  // 4 / 2, however often it occurred
  EXPECT_EQ(sample({-1, -1.5f}, greedy, 0, {0}), 1);         // -1 * 2
}

TEST(SampleToken, LogitsThatAreNotUsableAreAnError) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& logits : {std::vector<float>{1, nan}, {1, kInfinity}, {-kInfinity, -kInfinity}}) {
    try {
      sample(logits, {});
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kNumerics) << error.what();
    }
  }
}

}  // namespace
}  // namespace tessera
