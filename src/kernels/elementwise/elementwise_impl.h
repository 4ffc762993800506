// The implementations behind elementwise.h, for its dispatch, tests and benchmarks.
#pragma once

#include <vector>

#include "kernels/dispatch.h"
#include "kernels/elementwise/elementwise.h"

namespace tessera {

// Elements per block of sum_of_squares: 256 KiB, a share of L2.
inline constexpr int64_t kSumOfSquaresBlock = 64 * 1024;

struct ElementwiseKernels {
  decltype(&tessera::add) add;
  decltype(&tessera::scale) scale;
  decltype(&tessera::soft_cap) soft_cap;
  decltype(&tessera::soft_cap_backward) soft_cap_backward;
  decltype(&tessera::round_to) round_to;
  decltype(&tessera::sum_of_squares) sum_of_squares;
};

std::vector<Implementation<ElementwiseKernels>> elementwise_ref();
std::vector<Implementation<ElementwiseKernels>> elementwise_hwy();
const DispatchTable<ElementwiseKernels>& elementwise_table();

}  // namespace tessera
