// The implementations behind rmsnorm.h, for its dispatch, tests and benchmarks.
#pragma once

#include <vector>

#include "kernels/dispatch.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace tessera {

// Rows summed into one partial dw.
inline constexpr int64_t kRmsNormBackwardBlock = 64;

struct RmsNormKernels {
  decltype(&rmsnorm) forward;
  decltype(&add_rmsnorm) add_forward;
  decltype(&rmsnorm_backward) backward;
  decltype(&head_rmsnorm) head_forward;
  decltype(&head_rmsnorm_backward) head_backward;
};

std::vector<Implementation<RmsNormKernels>> rmsnorm_ref();
std::vector<Implementation<RmsNormKernels>> rmsnorm_hwy();
const DispatchTable<RmsNormKernels>& rmsnorm_table();

}  // namespace tessera
