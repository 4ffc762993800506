#include "cli/threads.h"

#include <cstdlib>

#include "base/log.h"
#include "platform/cpu.h"

namespace tessera {

int64_t threads_for_pool(int64_t asked) {
  const ThreadChoice choice = choose_threads(asked, std::getenv("OMP_NUM_THREADS"), cpu_limits());
  if (!choice.warning.empty()) log_warning("{}", choice.warning);
  return choice.num_threads;
}

}  // namespace tessera
