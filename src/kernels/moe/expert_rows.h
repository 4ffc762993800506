// The rows of a mixture of experts: every token once for each expert it chose, grouped by expert without
// padding, so that each expert's products take consecutive rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// The weights of a token's choices: their probabilities, these divided by their sum, or the softmax of the
// chosen logits alone, which are the same numbers, but choices and gradients do not depend on other logits.
enum class ExpertWeights { kProbabilities, kNormalized, kSoftmaxOfChosen };

struct ExpertRows {
  int64_t top_k = 0;             // k, choices of a token
  std::vector<int32_t> experts;  // [T, k] expert of each choice
  std::vector<int32_t> starts;   // [experts + 1] first row of each expert
  std::vector<int32_t> choices;  // [T k] the choice t k + j of each row, ascending within an expert
  std::vector<int32_t> rows;     // [T, k] row of each choice

  int64_t num_experts() const { return std::ssize(starts) - 1; }
  int64_t num_rows() const { return std::ssize(choices); }
  int64_t num_tokens() const { return top_k == 0 ? 0 : num_rows() / top_k; }
  int64_t begin(int64_t expert) const { return starts[static_cast<size_t>(expert)]; }
  int64_t end(int64_t expert) const { return starts[static_cast<size_t>(expert) + 1]; }

  // Sets the sizes. Allocates only beyond the largest ones so far.
  void resize(int64_t num_tokens, int64_t choices_per_token, int64_t num_experts);
  // Fills starts, choices and rows from `experts`: a counting sort.
  void group();
  // Spreads choices evenly, for Ops that compute no routing.
  void spread_evenly();
};

// How often experts were chosen and how probable they were, summed over tokens and layers.
struct RouterLoad {
  std::vector<double> probability;  // [experts]
  std::vector<int64_t> count;       // [experts]
  int64_t num_tokens = 0;           // of all layers together

  void reset(int64_t num_experts);
  // num_experts * sum over e of (count_e / tokens) (probability_e / tokens): 1 if all experts are chosen
  // equally often with k = 1. Fedus, Zoph and Shazeer, Switch Transformers, 2022, equations (4) to (6), as
  // load_balancing_loss_func of Transformers computes it.
  double balance_loss() const;
  // Its derivative by the probability of every expert for any token, times `scale`.
  void balance_gradient(double scale, std::span<float> gradient) const;
};

}  // namespace tessera
