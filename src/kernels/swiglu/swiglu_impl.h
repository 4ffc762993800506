// The implementations behind swiglu.h, for its dispatch, tests and benchmarks.
#pragma once

#include <vector>

#include "kernels/dispatch.h"
#include "kernels/swiglu/swiglu.h"

namespace tessera {

struct SwigluKernels {
  decltype(&swiglu) forward;
  decltype(&swiglu_backward) backward;
};

std::vector<Implementation<SwigluKernels>> swiglu_ref();
std::vector<Implementation<SwigluKernels>> swiglu_hwy();
const DispatchTable<SwigluKernels>& swiglu_table();

}  // namespace tessera
