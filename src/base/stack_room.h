// The stack space a thread has left: for code whose recursion depth depends on the contents of a file.
#pragma once

#include <cstdint>

namespace tessera {

// The calling thread's stack may be used down to this address: its end, and a reserve for what is called
// there.
const void* stack_floor();

}  // namespace tessera
