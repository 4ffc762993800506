// Random bits for stochastic rounding. They depend on the step and on the element's place among all
// parameters alone, so that a result depends neither on blocks nor on threads nor on ranks.
#pragma once

#include <cstdint>

namespace tessera {

// 32 uniform bits for an element in a step: the lower half for the first moment, the upper half for the
// second.
uint32_t rounding_bits(int64_t step, int64_t element);

// Elements come in groups: element lane + 16 word of a group has a word of the counter of its group and lane.
inline constexpr int64_t kRoundingGroup = 64;
inline constexpr int64_t kRoundingLanes = 16;
inline constexpr uint64_t kRoundingStream = 0x526F756E64696E67;  // "Rounding"

}  // namespace tessera
