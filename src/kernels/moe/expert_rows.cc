#include "kernels/moe/expert_rows.h"

#include <algorithm>

#include "base/error.h"

namespace tessera {

void ExpertRows::resize(int64_t num_tokens, int64_t choices_per_token, int64_t num_experts) {
  TESSERA_CHECK(num_tokens >= 0 && 0 < choices_per_token && choices_per_token <= num_experts,
                "{} tokens choose {} of {} experts", num_tokens, choices_per_token, num_experts);
  top_k = choices_per_token;
  const auto num_rows = static_cast<size_t>(num_tokens * top_k);
  experts.resize(num_rows);
  choices.resize(num_rows);
  rows.resize(num_rows);
  starts.resize(static_cast<size_t>(num_experts) + 1);
}

void ExpertRows::group() {
  std::ranges::fill(starts, 0);
  for (const int32_t expert : experts) {
    TESSERA_CHECK(0 <= expert && expert < num_experts(), "expert {} of {}", expert, num_experts());
    ++starts[static_cast<size_t>(expert) + 1];
  }
  for (size_t e = 1; e < starts.size(); ++e) starts[e] += starts[e - 1];
  for (size_t choice = 0; choice < experts.size(); ++choice) {
    const int32_t row = starts[static_cast<size_t>(experts[choice])]++;
    rows[choice] = row;
    choices[static_cast<size_t>(row)] = static_cast<int32_t>(choice);
  }
  // Each start has moved to the next expert's.
  std::shift_right(starts.begin(), starts.end(), 1);
  starts.front() = 0;
}

void ExpertRows::spread_evenly() {
  for (size_t choice = 0; choice < experts.size(); ++choice)
    experts[choice] = static_cast<int32_t>(static_cast<int64_t>(choice) % num_experts());
  group();
}

void RouterLoad::reset(int64_t num_experts) {
  probability.assign(static_cast<size_t>(num_experts), 0);
  count.assign(static_cast<size_t>(num_experts), 0);
  num_tokens = 0;
}

double RouterLoad::balance_loss() const {
  double sum = 0;
  for (size_t e = 0; e < count.size(); ++e) sum += static_cast<double>(count[e]) * probability[e];
  const auto tokens = static_cast<double>(num_tokens);
  return num_tokens == 0 ? 0 : static_cast<double>(count.size()) * sum / (tokens * tokens);
}

void RouterLoad::balance_gradient(double scale, std::span<float> gradient) const {
  TESSERA_CHECK(gradient.size() == count.size() && num_tokens > 0, "{} experts, {} gradients, {} tokens",
                count.size(), gradient.size(), num_tokens);
  const auto tokens = static_cast<double>(num_tokens);
  for (size_t e = 0; e < count.size(); ++e) {
    gradient[e] = static_cast<float>(scale * static_cast<double>(count.size()) *
                                     static_cast<double>(count[e]) / (tokens * tokens));
  }
}

}  // namespace tessera
