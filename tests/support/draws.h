// How many random inputs a test draws.
#pragma once

#include <cstdint>

#include "base/sanitizers.h"

namespace tessera {

// Under a sanitizer, which makes each draw so many times slower, a part of `count`; at least one.
constexpr uint64_t draws(uint64_t count, [[maybe_unused]] uint64_t times_slower = 10) {
#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
  return count < times_slower ? 1 : count / times_slower;
#else
  return count;
#endif
}

}  // namespace tessera
