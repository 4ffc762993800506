// Wall-clock time since construction.
#pragma once

#include <algorithm>
#include <chrono>

namespace tessera {

class Stopwatch {
 public:
  // Never 0, so that rates are finite.
  double seconds() const {
    return std::max(1e-9, std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tessera
