// In its own file because GCC reports free() of memory from operator new as a mistake when it sees both
// inlined in one place.
#include "support/allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<size_t> largest_bytes{0};
}  // namespace

void* operator new(size_t size_bytes) {
  size_t largest = largest_bytes.load();
  while (size_bytes > largest && !largest_bytes.compare_exchange_weak(largest, size_bytes)) {
  }
  if (void* memory = std::malloc(size_bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*size_bytes*/) noexcept { std::free(memory); }

namespace tessera {

size_t largest_allocation_bytes() { return largest_bytes.load(); }
void reset_largest_allocation() { largest_bytes.store(0); }

}  // namespace tessera
