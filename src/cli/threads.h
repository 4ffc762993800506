// The size of a command's thread pool.
#pragma once

#include <cstdint>
#include <optional>

#include "bench/thread_calibration.h"
#include "comm/world.h"
#include "platform/cpu.h"

namespace tessera {

struct PoolThreads {
  CpuLimits limits;  // with the rank's part of a cgroup limit, where an agent gave it one
  ThreadChoice choice;
  std::optional<ThreadCalibration> calibration = {};  // nothing: not measured

  int64_t num_threads() const {
    return choice.is_default && calibration ? calibration->num_threads() : choice.num_threads;
  }
};

// choose_threads() for a process with this environment, without a measurement. `asked` is the value of
// --num_threads, 0 where there is no such flag. What an agent wrote to OMP_NUM_THREADS is nobody's wish.
PoolThreads pool_threads(int64_t asked, const Environment& environment, CpuLimits limits);

// Of this process; logs the warning. One thread per core unless the flag or OMP_NUM_THREADS says otherwise.
int64_t threads_for_pool(int64_t asked = 0);

// The same for commands that multiply matrices: a measurement confirms or overrides the number where nobody
// asked for one, and a line in the log says so when it overrides.
int64_t threads_for_products(int64_t asked = 0);

// For a report: measures in any case.
PoolThreads examine_threads();

}  // namespace tessera
