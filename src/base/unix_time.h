#pragma once

#include <chrono>

namespace tessera {

// Seconds since 1970 by the system's clock, for records and for comparisons with other machines.
inline double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace tessera
