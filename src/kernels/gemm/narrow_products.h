// Products with a weight of few rows (LoRA adapters) as vector loops. They move memory more than they
// compute: each operand is read from memory once and every output is written once, where a general product
// packs its operands first, and cuts few rows of a gradient into too few tasks for several threads.
//
// The same contract as gemm.h.
#pragma once

#include <vector>

#include "kernels/dispatch.h"
#include "kernels/update.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// Rows of w. Measured with AVX-512 BF16: at 8 two to three times as fast backward as general products; from
// 16 on no faster, and slower forward.
inline constexpr int64_t kMaxNarrowRows = 8;

struct NarrowKernels {
  // y_TR = x_TK w_RK^T
  void (*forward)(ConstTensorView x_TK, ConstTensorView w_RK, TensorView y_TR, ThreadPool& pool);
  // dx_TK = or += dy_TR w_RK
  void (*backward_input)(ConstTensorView dy_TR, ConstTensorView w_RK, TensorView dx_TK, Update update,
                         ThreadPool& pool);
  // dw_RK = or += dy_TR^T x_TK
  void (*backward_weight)(ConstTensorView dy_TR, ConstTensorView x_TK, TensorView dw_RK, Update update,
                          ThreadPool& pool);
};

std::vector<Implementation<NarrowKernels>> narrow_hwy();
const DispatchTable<NarrowKernels>& narrow_table();

}  // namespace tessera
