// Definitions in the program take precedence over those of the C library, for shared libraries too.
#include "resource_counter.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

#include "base/sanitizers.h"

namespace {
std::atomic<int64_t> num_allocations{0};
std::atomic<int64_t> num_locks{0};
}  // namespace

#if !defined(TESSERA_ASAN) && !defined(TESSERA_TSAN)

extern "C" {

void* __libc_malloc(size_t size_bytes);
void* __libc_calloc(size_t count, size_t size_bytes);
void* __libc_realloc(void* memory, size_t size_bytes);
void* __libc_memalign(size_t alignment, size_t size_bytes);

void* malloc(size_t size_bytes) {
  ++num_allocations;
  return __libc_malloc(size_bytes);
}
void* calloc(size_t count, size_t size_bytes) {
  ++num_allocations;
  return __libc_calloc(count, size_bytes);
}
void* realloc(void* memory, size_t size_bytes) {
  ++num_allocations;
  return __libc_realloc(memory, size_bytes);
}
void* aligned_alloc(size_t alignment, size_t size_bytes) {
  ++num_allocations;
  return __libc_memalign(alignment, size_bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t size_bytes) {
  ++num_allocations;
  *memory = __libc_memalign(alignment, size_bytes);
  return *memory == nullptr ? ENOMEM : 0;
}

// Counts, then calls the C library's function of this name.
#define TESSERA_COUNTED_LOCK(name, type)                                                               \
  int name(type* lock) noexcept {                                                                      \
    static std::atomic<int (*)(type*)> real{nullptr};                                                  \
    ++num_locks;                                                                                       \
    if (real.load() == nullptr) real.store(reinterpret_cast<int (*)(type*)>(dlsym(RTLD_NEXT, #name))); \
    return real.load()(lock);                                                                          \
  }
TESSERA_COUNTED_LOCK(pthread_mutex_lock, pthread_mutex_t)
TESSERA_COUNTED_LOCK(pthread_mutex_trylock, pthread_mutex_t)
TESSERA_COUNTED_LOCK(pthread_rwlock_rdlock, pthread_rwlock_t)
TESSERA_COUNTED_LOCK(pthread_rwlock_wrlock, pthread_rwlock_t)
TESSERA_COUNTED_LOCK(pthread_spin_lock, pthread_spinlock_t)
#undef TESSERA_COUNTED_LOCK

}  // extern "C"

#endif

namespace tessera {

ResourceCounts resource_counts() { return {num_allocations.load(), num_locks.load()}; }

bool counts_resources() {
#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
  return false;
#else
  return true;
#endif
}

}  // namespace tessera
