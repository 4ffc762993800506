// The implementations behind activation.h, for its dispatch, tests and benchmarks.
#pragma once

#include <vector>

#include "kernels/activation/activation.h"
#include "kernels/dispatch.h"

namespace tessera {

struct ActivationKernels {
  decltype(&activation) forward;
  decltype(&activation_backward) backward;
};

std::vector<Implementation<ActivationKernels>> activation_ref();
std::vector<Implementation<ActivationKernels>> activation_hwy();
const DispatchTable<ActivationKernels>& activation_table();

}  // namespace tessera
