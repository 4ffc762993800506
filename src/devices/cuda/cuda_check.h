// Errors of CUDA's runtime as exceptions.
#pragma once

#include <source_location>

namespace tessera::cuda {

// `status` is a cudaError_t. Throws Error(kBadConfig) where the card's memory is full, otherwise
// Error(kInternal), with CUDA's text and the place of the call.
void check_cuda(int status, std::source_location where = std::source_location::current());

}  // namespace tessera::cuda
