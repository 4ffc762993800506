// kernels/swiglu on the device.
#pragma once

#include <cstdint>

#include "devices/cuda/cuda_stream.h"

namespace tessera::cuda {

// h_TF = silu(gate) up with rows [gate: F | up: F] of gate_up_TF2.
template <typename A>
void swiglu(const A* gate_up_TF2, A* h_TF, int64_t T, int64_t F, CudaStream stream);

// dgate_up_TF2 and, bit-identical to swiglu's, h_TF. dgate_up may be gate_up, h may be dh.
template <typename A>
void swiglu_backward(const A* dh_TF, const A* gate_up_TF2, A* dgate_up_TF2, A* h_TF, int64_t T, int64_t F,
                     CudaStream stream);

}  // namespace tessera::cuda
