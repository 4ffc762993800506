#include "base/mistakes.h"

#include <algorithm>

namespace tessera {

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

}  // namespace tessera
