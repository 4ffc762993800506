// The size of a command's thread pool.
#pragma once

#include <cstdint>

namespace tessera {

// choose_threads (platform/cpu.h) with this process's environment and limits; logs its warning. `asked` is
// the value of --num_threads, 0 where there is no such flag.
int64_t threads_for_pool(int64_t asked = 0);

}  // namespace tessera
