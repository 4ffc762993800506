// Marks what this rank is doing, for reports on ranks that stall.
#pragma once

#include <cstdint>

#include "comm/communicator.h"

namespace tessera {

// `step` counts from 1.
inline void mark_work(Communicator& comm, const char* what, int64_t step) {
  comm.position().mark(Activity::kWork, {.what = what, .number = step});
}

}  // namespace tessera
