// The implementations behind moe.h, for its dispatch and tests. Arguments are checked by moe.cc.
#pragma once

#include <vector>

#include "kernels/dispatch.h"
#include "kernels/moe/moe.h"

namespace tessera {

struct MoeKernels {
  decltype(&tessera::combine_expert_rows) combine;
  decltype(&tessera::weigh_expert_rows) weigh;
  decltype(&tessera::add_expert_bias) add_bias;
  decltype(&tessera::expert_bias_backward) bias_backward;
};

std::vector<Implementation<MoeKernels>> moe_ref();
std::vector<Implementation<MoeKernels>> moe_hwy();
const DispatchTable<MoeKernels>& moe_table();

}  // namespace tessera
