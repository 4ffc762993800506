// For tests: a program that links allocation_counter.cc knows what operator new hands out.
#pragma once

#include <cstddef>

namespace tessera {

// The largest piece of memory asked for since the last call of reset_largest_allocation(), by any thread.
size_t largest_allocation_bytes();
void reset_largest_allocation();

}  // namespace tessera
