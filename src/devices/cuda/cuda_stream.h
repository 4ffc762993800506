// The stream of a CUDA device, named without CUDA's headers.
#pragma once

struct CUstream_st;

namespace tessera {

using CudaStream = CUstream_st*;

}  // namespace tessera
