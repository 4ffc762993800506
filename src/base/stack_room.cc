#include "base/stack_room.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>

namespace tessera {
namespace {

constexpr size_t kReserveBytes = size_t{192} << 10;

const void* find_floor() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return nullptr;
  void* end = nullptr;
  size_t size = 0;
  pthread_attr_getstack(&attributes, &end, &size);
  pthread_attr_destroy(&attributes);
  return static_cast<const char*>(end) + std::min(kReserveBytes, size / 2);
}

}  // namespace

// The main thread's bounds are read from /proc/self/maps: once.
const void* stack_floor() {
  thread_local const void* const floor = find_floor();
  return floor;
}

}  // namespace tessera
