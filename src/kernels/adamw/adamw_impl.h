// The implementations behind adamw.h, for its dispatch, tests and benchmarks.
#pragma once

#include <vector>

#include "kernels/adamw/adamw.h"
#include "kernels/dispatch.h"

namespace tessera {

struct AdamWKernels {
  decltype(&adamw_f32) update_f32;
  decltype(&adamw_bf16) update_bf16;
  decltype(&adamw_f32_half) update_f32_half;
  decltype(&adamw_bf16_half) update_bf16_half;
};

// rounding_bits() of groups of kRoundingGroup elements: element lane + 16 word of a group has a word of the
// counter of its group and lane.
inline constexpr int64_t kRoundingGroup = 64;
inline constexpr int64_t kRoundingLanes = 16;
inline constexpr uint64_t kRoundingStream = 0x526F756E64696E67;  // "Rounding"

std::vector<Implementation<AdamWKernels>> adamw_ref();
std::vector<Implementation<AdamWKernels>> adamw_hwy();
const DispatchTable<AdamWKernels>& adamw_table();

}  // namespace tessera
