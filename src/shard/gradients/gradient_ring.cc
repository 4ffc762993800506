#include "shard/gradients/gradient_ring.h"

#include <algorithm>

#include "base/memory.h"

namespace tessera {

GradientRing gradient_ring(const ZeroLayout& layout, StateTensors tensors, int64_t most_elements) {
  // One range is updated while the next ones arrive; whole parameters are large.
  constexpr int64_t kSlots = 4, kSlotsOfWholes = 2;
  constexpr int64_t kAlignment = 64;  // elements: places of ranges do not share a cache line
  int64_t largest = 0;
  for (const ZeroParameter& parameter : layout.parameters) {
    largest = std::max(largest, parameter.elements.size());
  }
  largest = round_up(largest, kAlignment);
  if (is_elementwise(tensors)) return {kSlots, std::min(largest, most_elements)};
  return {kSlotsOfWholes, largest};
}

}  // namespace tessera
