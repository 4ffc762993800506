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
  decltype(&adamw_f32_8bit) update_f32_8bit;
  decltype(&adamw_bf16_8bit) update_bf16_8bit;
};

std::vector<Implementation<AdamWKernels>> adamw_ref();
std::vector<Implementation<AdamWKernels>> adamw_hwy();
const DispatchTable<AdamWKernels>& adamw_table();

}  // namespace tessera
