// The implementations behind adamw.h, for its dispatch, tests and benchmarks.
#pragma once

#include <vector>

#include "kernels/adamw/adamw.h"
#include "kernels/dispatch.h"

namespace tessera {

struct AdamWKernels {
  decltype(&adamw_f32) update_f32;
  decltype(&adamw_bf16) update_bf16;
};

std::vector<Implementation<AdamWKernels>> adamw_ref();
std::vector<Implementation<AdamWKernels>> adamw_hwy();
const DispatchTable<AdamWKernels>& adamw_table();

}  // namespace tessera
