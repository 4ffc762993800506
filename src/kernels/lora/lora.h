// Kernels that LoRA adapters need besides products (model/lora.h).
//
// One product may serve several modules (q_proj, k_proj and v_proj), each with an adapter of its own. Their B
// form one matrix e_RN: R the sum of their ranks, N all outputs of the product; the block of a module holds
// scale * B^T, everything outside the blocks is zero.
#pragma once

#include <cstdint>

#include "kernels/update.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// A module's block of e_RN.
struct LoraBlock {
  int64_t first_rank;    // row
  int64_t first_output;  // column
  float scale;
};

// e_RN[first_rank + i, first_output + j] = scale * b_NR[j, i], rounded to the dtype, BF16 or F32. Other
// elements of e stay as they are.
void lora_place(ConstTensorView b_NR, const LoraBlock& block, TensorView e_RN, ThreadPool& pool);

// The gradient of B from that of e, both F32: db_NR[j, i] = or += scale * de_RN[first_rank + i, first_output
// + j].
void lora_take(ConstTensorView de_RN, const LoraBlock& block, TensorView db_NR, Update update,
               ThreadPool& pool);

}  // namespace tessera
