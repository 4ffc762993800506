#include "model/flops.h"

#include <algorithm>

namespace tessera {
namespace {

double layer_matrix_elements(const ModelConfig& config) {
  const int64_t q_width = config.num_attention_heads * config.head_dim;
  const int64_t qkv_width = q_width + 2 * config.num_key_value_heads * config.head_dim;
  const int64_t attention = config.hidden_size * (qkv_width + q_width);
  const int64_t mlp = 3 * config.hidden_size * config.intermediate_size;
  return static_cast<double>(attention + mlp);
}

}  // namespace

double causal_pairs(int64_t length, int64_t sliding_window) {
  const int64_t window = sliding_window == 0 ? length : std::min(length, sliding_window);
  // The first `window` queries see 1, 2, ..., window keys, the others `window` each.
  const auto n = static_cast<double>(length);
  const auto w = static_cast<double>(window);
  return w * (w + 1) / 2 + (n - w) * w;
}

ModelFlops model_flops(const ModelConfig& config, std::span<const int32_t> cu_seqlens, int64_t num_targets) {
  const auto num_tokens = static_cast<double>(cu_seqlens.empty() ? 0 : cu_seqlens.back());
  double pairs = 0;  // over all layers
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int64_t window =
        config.sliding_window.empty() ? 0 : config.sliding_window[static_cast<size_t>(layer)];
    for (size_t i = 1; i < cu_seqlens.size(); ++i) {
      pairs += causal_pairs(cu_seqlens[i] - cu_seqlens[i - 1], window);
    }
  }
  ModelFlops flops;
  flops.layers =
      2 * num_tokens * layer_matrix_elements(config) * static_cast<double>(config.num_hidden_layers);
  flops.attention = 4 * static_cast<double>(config.num_attention_heads * config.head_dim) * pairs;
  flops.lm_head = 2 * static_cast<double>(num_targets) * static_cast<double>(config.vocab_size) *
                  static_cast<double>(config.hidden_size);
  return flops;
}

}  // namespace tessera
