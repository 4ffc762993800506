#include "platform/background_thread.h"

#include <system_error>
#include <utility>

#include "base/error.h"
#include "platform/cpu.h"

namespace tessera {

std::thread start_background_thread(std::function<void()> body) {
  const AsynchronousSignalsBlocked inherited;
  const UnpinnedScope unpinned(spare_cpus());  // the caller may be a pinned thread of a pool
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    fail(ExitCode::kBadConfig,
         "the system refuses to create another thread ({}): raise the limit of processes (ulimit -u, or the "
         "container's)",
         error.code().message());
  }
}

}  // namespace tessera
