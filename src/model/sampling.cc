#include "model/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/rng.h"

namespace tessera {
namespace {

constexpr float kRemoved = -std::numeric_limits<float>::infinity();

// Makes a token that occurred less likely whatever the sign of its logit; applied once, however often it
// occurred.
void apply_repetition_penalty(std::span<const float> logits, std::span<const int32_t> history, double penalty,
                              std::span<float> scores) {
  const auto factor = static_cast<float>(penalty);
  for (const int32_t id : history) {
    TESSERA_CHECK(0 <= id && static_cast<size_t>(id) < logits.size(), "token {} of {}", id, logits.size());
    const auto token = static_cast<size_t>(id);
    scores[token] = logits[token] < 0 ? logits[token] * factor : logits[token] / factor;
  }
}

// Removes every score below the k-th largest; scores equal to it stay, as in Hugging Face.
void keep_top_k(int64_t k, std::span<float> scores, std::span<float> scratch) {
  if (k >= static_cast<int64_t>(scores.size())) return;
  std::copy(scores.begin(), scores.end(), scratch.begin());
  const auto kth = scratch.begin() + (k - 1);
  std::nth_element(scratch.begin(), kth, scratch.end(), std::greater<>());
  for (float& score : scores) {
    if (score < *kth) score = kRemoved;
  }
}

// Removes the least likely scores while their probabilities sum to at most 1 - p; the most likely one always
// stays. Among equal scores, those first in the vocabulary are removed first.
void keep_top_p(double p, std::span<float> scores, std::span<float> scratch) {
  const auto end = std::copy_if(scores.begin(), scores.end(), scratch.begin(),
                                [](float score) { return score != kRemoved; });
  std::sort(scratch.begin(), end);
  const auto num_kept = static_cast<size_t>(end - scratch.begin());
  const double largest = scratch[num_kept - 1];
  double total = 0;
  for (size_t i = 0; i < num_kept; ++i) total += std::exp(scratch[i] - largest);
  double cumulative = 0;
  size_t num_removed = 0;
  while (num_removed + 1 < num_kept) {
    cumulative += std::exp(scratch[num_removed] - largest) / total;
    if (cumulative > 1 - p) break;
    ++num_removed;
  }
  if (num_removed == 0) return;
  const float threshold = scratch[num_removed - 1];
  const auto first_equal = std::lower_bound(scratch.begin(), end, threshold);
  int64_t equal_to_remove = static_cast<int64_t>(num_removed) - (first_equal - scratch.begin());
  for (float& score : scores) {
    if (score < threshold || (score == threshold && equal_to_remove-- > 0)) score = kRemoved;
  }
}

// The token at which the cumulative probability exceeds `uniform`.
int32_t draw(std::span<const float> scores, double uniform) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (const float score : scores) total += std::exp(score - largest);
  const double target = uniform * total;
  double cumulative = 0;
  int32_t last_possible = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double weight = std::exp(scores[i] - largest);
    if (weight == 0) continue;
    last_possible = static_cast<int32_t>(i);
    cumulative += weight;
    if (cumulative > target) return last_possible;
  }
  return last_possible;
}

void check_finite(std::span<const float> logits) {
  bool any_finite = false;
  for (const float logit : logits) {
    if (std::isnan(logit) || logit == std::numeric_limits<float>::infinity()) {
      fail(ExitCode::kNumerics, "cannot choose a token: a logit is {}; the model's weights are unusable",
           logit);
    }
    any_finite = any_finite || std::isfinite(logit);
  }
  if (!any_finite) fail(ExitCode::kNumerics, "cannot choose a token: no logit is finite");
}

}  // namespace

int32_t sample_token(std::span<const float> logits, std::span<const int32_t> history,
                     const SamplingOptions& options, uint64_t index, std::vector<float>* scratch) {
  TESSERA_CHECK(options.temperature >= 0 && options.top_k >= 0 && options.top_p >= 0 && options.top_p <= 1 &&
                    options.repetition_penalty > 0,
                "temperature={} top_k={} top_p={} repetition_penalty={}", options.temperature, options.top_k,
                options.top_p, options.repetition_penalty);
  check_finite(logits);
  scratch->resize(2 * logits.size());
  const std::span<float> scores(scratch->data(), logits.size());
  const std::span<float> sorting(scratch->data() + logits.size(), logits.size());
  std::copy(logits.begin(), logits.end(), scores.begin());

  if (options.repetition_penalty != 1) {
    apply_repetition_penalty(logits, history, options.repetition_penalty, scores);
  }
  if (options.temperature == 0) {
    return static_cast<int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
  }
  const auto temperature = static_cast<float>(options.temperature);
  for (float& score : scores) score /= temperature;
  if (options.top_k > 0) keep_top_k(options.top_k, scores, sorting);
  if (options.top_p < 1) keep_top_p(options.top_p, scores, sorting);
  return draw(scores, CounterRng(options.seed, hash_name("sampling")).uniform(index));
}

}  // namespace tessera
