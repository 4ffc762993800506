// The implementations behind clamped_swiglu.h, for its dispatch and tests.
#pragma once

#include <vector>

#include "kernels/clamped_swiglu/clamped_swiglu.h"
#include "kernels/dispatch.h"

namespace tessera {

struct ClampedSwigluKernels {
  decltype(&clamped_swiglu) forward;
  decltype(&clamped_swiglu_backward) backward;
};

std::vector<Implementation<ClampedSwigluKernels>> clamped_swiglu_ref();
std::vector<Implementation<ClampedSwigluKernels>> clamped_swiglu_hwy();
const DispatchTable<ClampedSwigluKernels>& clamped_swiglu_table();

}  // namespace tessera
