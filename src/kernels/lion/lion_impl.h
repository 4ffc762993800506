// The implementations behind lion.h, for its dispatch and tests.
#pragma once

#include <vector>

#include "kernels/dispatch.h"
#include "kernels/lion/lion.h"

namespace tessera {

struct LionKernels {
  decltype(&lion_f32) update_f32;
  decltype(&lion_bf16) update_bf16;
  decltype(&lion_f32_8bit) update_f32_8bit;
  decltype(&lion_bf16_8bit) update_bf16_8bit;
};

std::vector<Implementation<LionKernels>> lion_ref();
std::vector<Implementation<LionKernels>> lion_hwy();
const DispatchTable<LionKernels>& lion_table();

}  // namespace tessera
