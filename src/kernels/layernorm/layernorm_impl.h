// The implementations behind layernorm.h, for its dispatch, tests and benchmarks.
#pragma once

#include <vector>

#include "kernels/dispatch.h"
#include "kernels/layernorm/layernorm.h"

namespace tessera {

struct LayerNormKernels {
  decltype(&layernorm) forward;
  decltype(&layernorm_backward) backward;
};

std::vector<Implementation<LayerNormKernels>> layernorm_ref();
std::vector<Implementation<LayerNormKernels>> layernorm_hwy();
const DispatchTable<LayerNormKernels>& layernorm_table();

}  // namespace tessera
