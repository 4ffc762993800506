// The implementations behind attention.h, for its dispatch, tests and benchmarks.
#pragma once

#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/dispatch.h"

namespace tessera {

struct AttentionKernels {
  decltype(&attention) forward;
  decltype(&attention_backward) backward;
  decltype(&attention_cached) cached;
  decltype(&general_attention) general_forward;
  decltype(&general_attention_backward) general_backward;
};

std::vector<Implementation<AttentionKernels>> attention_ref();
std::vector<Implementation<AttentionKernels>> attention_hwy();
std::vector<Implementation<AttentionKernels>> attention_amx();  // bf16 forward and backward; otherwise as hwy
const DispatchTable<AttentionKernels>& attention_table();

}  // namespace tessera
