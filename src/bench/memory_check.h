// Refuses a benchmark that would not fit, with figures, before anything is allocated.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "platform/memory_info.h"

namespace tessera {

// Error(kBadConfig) if needed_bytes are not free for this process.
inline void check_bench_memory(const std::string& what, int64_t needed_bytes) {
  const int64_t free_bytes = memory_info().free_for_process_bytes;
  if (needed_bytes <= free_bytes) return;
  fail(ExitCode::kBadConfig, "{}: needs {} of memory, {} are free; use smaller shapes", what,
       format_bytes(needed_bytes), format_bytes(free_bytes));
}

}  // namespace tessera
