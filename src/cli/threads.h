// The size of a command's thread pool.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/ranks/world.h"
#include "devices/measure/thread_calibration.h"
#include "platform/cpu.h"

namespace tessera {

struct PoolThreads {
  CpuLimits limits;  // with the rank's share of a cgroup limit, if an agent assigned one
  ThreadChoice choice;
  std::optional<ThreadCalibration> calibration = {};  // nullopt: not measured

  int64_t num_threads() const {
    return choice.is_default && calibration ? calibration->num_threads() : choice.num_threads;
  }
};

// choose_threads() for a process with this environment, without a measurement. `asked` is the value of
// --num_threads, 0 if there is no such flag. An OMP_NUM_THREADS set by an agent does not count as the user's
// choice.
PoolThreads pool_threads(int64_t asked, const Environment& environment, CpuLimits limits);

// The number of threads for this process; logs any warning. One thread per core unless the flag or
// OMP_NUM_THREADS says otherwise.
int64_t threads_for_pool(int64_t asked = 0);

// Like threads_for_pool(), for commands that multiply matrices: if no number was requested, a measurement
// confirms or overrides the default, and a log line reports an override.
int64_t threads_for_products(int64_t asked = 0);

// Always measures, for a report.
PoolThreads examine_threads();

}  // namespace tessera
