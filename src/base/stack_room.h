// How much of its stack a thread has left: for code whose recursion follows what a file holds.
#pragma once

#include <cstdint>

namespace tessera {

// The calling thread's stack may be used down to this address: its end, and a reserve for what is called
// there.
const void* stack_floor();

}  // namespace tessera
