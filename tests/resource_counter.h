// For tests: a program that links resource_counter.cc counts what its threads take from the heap and which
// locks they take, libraries included.
#pragma once

#include <cstdint>

namespace tessera {

struct ResourceCounts {
  int64_t allocations =
      0;              // malloc, calloc, realloc, aligned_alloc, posix_memalign; operator new through them
  int64_t locks = 0;  // of pthread mutexes (std::mutex), read-write and spin locks, tried ones included
};

// Since the start of the program, by all threads.
ResourceCounts resource_counts();

// False in builds with a sanitizer, which needs these functions itself.
bool counts_resources();

}  // namespace tessera
