#include "base/log_once.h"

#include <mutex>
#include <set>

#include "base/log.h"

namespace tessera {

void log_warning_once(const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string> logged;
  {
    const std::lock_guard lock(mutex);
    if (!logged.insert(message).second) return;
  }
  log_warning("{}", message);
}

}  // namespace tessera
