#include "base/error.h"

#include <cstring>
#include <string_view>

namespace tessera {

void fail_errno(ExitCode code, int errno_value, const std::string& message) {
  throw Error(code, fmt::format("{}: {}", message, std::strerror(errno_value)));
}

namespace internal {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::string_view path(file);
  if (const auto src = path.rfind("/src/"); src != std::string_view::npos) path.remove_prefix(src + 1);
  throw Error(ExitCode::kInternal, fmt::format("internal error at {}:{}: {}{}{} (please report this)", path,
                                               line, condition, message.empty() ? "" : ": ", message));
}

}  // namespace internal
}  // namespace tessera
