// Normalisation of rows to mean 0 and variance 1, with a weight and a bias. Ba, Kiros and Hinton, "Layer
// normalization", 2016; BERT, XLM-RoBERTa, ModernBERT.
//
//   mean_R = mean_D(x)      rstd_R = 1 / sqrt(mean_D((x - mean)^2) + eps)      n = (x - mean) rstd
//   y_RD = w_D n + b_D
//   g = dy w      dx = rstd (g - mean_D(g) - n mean_D(g n))      dw = sum_R dy n      db = sum_R dy
//
// Activations, weights and biases are BF16 or F32, the same dtype in one call; statistics and sums are
// float32; outputs are rounded once. dw and db are summed in the order of the rows, so results do not depend
// on the number of threads.
#pragma once

#include "kernels/update.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// b_D may be empty: zero. stats_R2 is F32 [R, 2]: mean and rstd of every row. y may be x.
void layernorm(ConstTensorView x_RD, ConstTensorView w_D, ConstTensorView b_D, float eps, TensorView y_RD,
               TensorView stats_R2, ThreadPool& pool);

// dx_RD = or += the gradient through the norm (dx may be dy if it is overwritten); dw_D and db_D = or +=
// (F32); empty: not wanted.
void layernorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, ConstTensorView w_D,
                        ConstTensorView stats_R2, TensorView dx_RD, Update dx_update, TensorView dw_D,
                        TensorView db_D, Update dw_update, ThreadPool& pool);

}  // namespace tessera
