// The number of random inputs a test draws, and of cases it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "base/sanitizers.h"

namespace tessera {

// A part of `count`, at least one, under a sanitizer, which makes each draw `times_slower` times as slow.
constexpr uint64_t draws(uint64_t count, [[maybe_unused]] uint64_t times_slower = 10) {
#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
  return count < times_slower ? 1 : count / times_slower;
#else
  return count;
#endif
}

// The step of a loop over similar inputs: 1, or `stride` under a sanitizer.
constexpr int sanitizer_stride(int stride = 3) { return draws(2, 2) == 1 ? stride : 1; }

// All of the cases; under a sanitizer every third, as they differ in sizes more than in the code they run.
template <typename Case>
std::vector<Case> drawn_cases(const std::vector<Case>& cases) {
  std::vector<Case> drawn;
  for (size_t i = 0; i < cases.size(); i += sanitizer_stride()) drawn.push_back(cases[i]);
  return drawn;
}

}  // namespace tessera
