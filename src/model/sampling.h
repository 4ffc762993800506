#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

struct SamplingOptions {
  double temperature = 1.0;  // 0 = greedy
  int64_t top_k = 0;         // 0 = off
  double top_p = 1.0;
  double repetition_penalty = 1.0;  // Keskar et al., CTRL, 2019; as in Hugging Face
  uint64_t seed = 42;
};

// Draws one token from logits; `history` holds the ids so far (for the repetition penalty), `index` counts
// the tokens drawn.
int32_t sample_token(std::span<const float> logits, std::span<const int32_t> history,
                     const SamplingOptions& options, uint64_t index, std::vector<float>* scratch);

}  // namespace tessera
