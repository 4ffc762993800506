// The implementations behind dropout.h, for its dispatch, tests and benchmarks.
#pragma once

#include <vector>

#include "kernels/dispatch.h"
#include "kernels/dropout/dropout.h"

namespace tessera {

struct DropoutKernels {
  decltype(&tessera::dropout) dropout;
};

std::vector<Implementation<DropoutKernels>> dropout_ref();
std::vector<Implementation<DropoutKernels>> dropout_hwy();
const DispatchTable<DropoutKernels>& dropout_table();

}  // namespace tessera
