// Brings all singular values of a matrix close to 1 and leaves its singular vectors as they are: the quintic
// Newton-Schulz iteration of Muon. Jordan et al., Muon: an optimizer for hidden layers in neural networks,
// 2024; coefficients, number of steps and epsilon as in torch.optim.Muon. With x [rows, columns], rows <=
// columns,
//
//   x /= max(|x|, eps)      5 times:   g = x x^T    x = a x + (b g + c g^2) x
//
// and if rows > columns the same is done to x^T, for which only an operand is transposed. Singular values end
// between 0.7 and 1.2 unless they are below a few thousandths of |x|. g and g^2 are symmetric, so little more
// than the half on and below the diagonal is computed.
//
// Operands of the products are rounded to `dtype`. PyTorch also rounds to BF16; but here x, g and their sums
// stay in float32, and the result is not rounded. A product of float32 operands would take 8 to 16 times as
// long, for directions that are noise from gradients anyway.
#pragma once

#include <cstdint>
#include <span>

#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// Operations of the products.
double newton_schulz_flop(int64_t rows, int64_t columns);
int64_t newton_schulz_workspace_bytes(int64_t rows, int64_t columns, DType dtype, int64_t num_threads);
// x_RC is F32 and changed in place; dtype is BF16 or F32. The result does not depend on the number of
// threads.
void newton_schulz(TensorView x_RC, DType dtype, std::span<std::byte> workspace, ThreadPool& pool);

}  // namespace tessera
