// For tests: a program that links resource_counter.cc counts its heap allocations and lock acquisitions,
// including those in libraries.
#pragma once

#include <cstdint>

namespace tessera {

struct ResourceCounts {
  int64_t allocations =
      0;              // malloc, calloc, realloc, aligned_alloc, posix_memalign; operator new through them
  int64_t locks = 0;  // pthread mutexes (std::mutex), read-write and spin locks, including try-locks
};

// Since the start of the program, over all threads.
ResourceCounts resource_counts();

// False in sanitizer builds, where the sanitizer needs these functions itself.
bool counts_resources();

}  // namespace tessera
