#include "kernels/rounding_bits.h"

#include "base/rng.h"

namespace tessera {

uint32_t rounding_bits(int64_t step, int64_t element) {
  const int64_t group = element / kRoundingGroup, place = element % kRoundingGroup;
  const auto counter = static_cast<uint64_t>(group * kRoundingLanes + place % kRoundingLanes);
  return philox4x32(static_cast<uint64_t>(step), counter,
                    kRoundingStream)[static_cast<size_t>(place / kRoundingLanes)];
}

}  // namespace tessera
