#include "model/flops.h"

#include <algorithm>

namespace tessera {
double causal_pairs(int64_t length, int64_t sliding_window) {
  const int64_t window = sliding_window == 0 ? length : std::min(length, sliding_window);
  // The first `window` queries see 1, 2, ..., window keys, the others `window` each.
  const auto n = static_cast<double>(length);
  const auto w = static_cast<double>(window);
  return w * (w + 1) / 2 + (n - w) * w;
}

double attention_pairs(const AttentionInputs& inputs, int64_t sliding_window) {
  double pairs = 0;
  for (size_t n = 0; n + 1 < inputs.cu_queries.size(); ++n) {
    const int64_t queries = inputs.cu_queries[n + 1] - inputs.cu_queries[n];
    const int64_t keys = inputs.cu_keys[n + 1] - inputs.cu_keys[n];
    if (inputs.causal) {
      pairs += causal_pairs(keys, sliding_window) - causal_pairs(keys - queries, sliding_window);
    } else if (sliding_window == 0) {
      pairs += static_cast<double>(queries) * static_cast<double>(keys);
    } else {
      pairs += 2 * causal_pairs(keys, sliding_window) - static_cast<double>(keys);
    }
  }
  return pairs;
}

}  // namespace tessera
