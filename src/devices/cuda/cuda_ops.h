// Ops on an NVIDIA card: products by cuBLASLt, everything else by the kernels of this folder. No sum has a
// nondeterministic order. Quantized weights are not available.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace tessera {

// Operations on cuda_device(local_rank). Error(kBadConfig) with the reason if there is none.
std::unique_ptr<Ops> make_cuda_ops(int local_rank = 0);

}  // namespace tessera
