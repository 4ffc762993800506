// Clocks.
#pragma once

#include <algorithm>
#include <chrono>

namespace tessera {

// Wall-clock time since construction.
class Stopwatch {
 public:
  // Never 0, so that rates are finite.
  double seconds() const {
    return std::max(1e-9, std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Seconds since 1970 by the system's clock, for records and for comparisons with other machines.
inline double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace tessera
