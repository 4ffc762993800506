#include "model/encoder_decoder/position_buckets.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace tessera {

std::vector<int32_t> position_buckets(int64_t num_buckets, int64_t max_distance, bool both_directions) {
  const int64_t of_side = both_directions ? num_buckets / 2 : num_buckets;
  const int64_t max_exact = of_side / 2;
  // Divided in double and rounded to float32 where a tensor meets it, as in PyTorch.
  const auto log_range =
      static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(max_exact)));
  std::vector<int32_t> buckets;
  for (int64_t distance = -max_distance; distance <= max_distance; ++distance) {
    const int64_t first = both_directions && distance > 0 ? of_side : 0;
    const int64_t length = both_directions ? std::abs(distance) : std::max<int64_t>(0, -distance);
    int64_t bucket = length;
    if (length >= max_exact) {
      const float ratio = std::log(static_cast<float>(length) / static_cast<float>(max_exact)) / log_range;
      bucket = max_exact + static_cast<int64_t>(ratio * static_cast<float>(of_side - max_exact));
      bucket = std::min(bucket, of_side - 1);
    }
    buckets.push_back(static_cast<int32_t>(first + bucket));
  }
  return buckets;
}

}  // namespace tessera
