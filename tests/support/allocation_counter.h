// For tests: a program that links allocation_counter.cc records what operator new allocates.
#pragma once

#include <cstddef>

namespace tessera {

// The largest single allocation by any thread since the last call of reset_largest_allocation().
size_t largest_allocation_bytes();
void reset_largest_allocation();

}  // namespace tessera
