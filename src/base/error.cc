#include "base/error.h"

#include <algorithm>
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

bool is_users_mistake(ExitCode code) {
  return code == ExitCode::kUsage || code == ExitCode::kBadData || code == ExitCode::kNoInput ||
         code == ExitCode::kBadConfig;
}

void fail_all(ExitCode code, const std::vector<std::string>& messages) {
  TESSERA_CHECK(!messages.empty());
  if (messages.size() == 1) throw Error(code, messages[0]);
  constexpr size_t kMaxShown = 20;
  std::string text = fmt::format("{} mistakes:", messages.size());
  if (messages.size() > kMaxShown)
    text = fmt::format("{} mistakes, the first {}:", messages.size(), kMaxShown);
  for (size_t i = 0; i < std::min(messages.size(), kMaxShown); ++i)
    text += fmt::format(" ({}) {}", i + 1, messages[i]);
  throw Error(code, text);
}

std::span<const ExitCodeMeaning> exit_code_meanings() {
  static constexpr ExitCodeMeaning kMeanings[] = {
      {0, "done"},           {64, "bad command line"},  {65, "bad data"},
      {66, "missing input"}, {70, "internal error"},    {74, "I/O error"},
      {75, "try again"},     {78, "bad configuration"}, {79, "numerical failure"},
  };
  return kMeanings;
}

}  // namespace tessera
