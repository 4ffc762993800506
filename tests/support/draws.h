// How many random inputs a test draws, and of how many cases it is run.
#pragma once

#include <cstdint>
#include <vector>

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

// Under a sanitizer every third of the cases, which differ in sizes more than in what runs; all of them
// otherwise.
template <typename Case>
std::vector<Case> drawn_cases(const std::vector<Case>& cases) {
  const size_t stride = draws(3, 3) == 1 ? 3 : 1;
  std::vector<Case> drawn;
  for (size_t i = 0; i < cases.size(); i += stride) drawn.push_back(cases[i]);
  return drawn;
}

}  // namespace tessera
