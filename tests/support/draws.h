// How many random inputs a test draws.
#pragma once

#include <cstdint>

#include "base/sanitizers.h"

namespace tessera {

// A tenth of `count` under a sanitizer, which makes each draw slower by that much and more; at least one.
constexpr uint64_t draws(uint64_t count) {
#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
  return count < 10 ? 1 : count / 10;
#else
  return count;
#endif
}

}  // namespace tessera
