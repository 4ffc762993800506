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

}  // namespace tessera
