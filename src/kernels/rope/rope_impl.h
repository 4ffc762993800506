// The implementations behind rope.h, for its dispatch, tests and benchmarks.
#pragma once

#include <vector>

#include "kernels/dispatch.h"
#include "kernels/rope/rope.h"

namespace tessera {

struct RopeKernels {
  decltype(&rope) rotate;
};

std::vector<Implementation<RopeKernels>> rope_ref();
std::vector<Implementation<RopeKernels>> rope_hwy();
const DispatchTable<RopeKernels>& rope_table();

}  // namespace tessera
