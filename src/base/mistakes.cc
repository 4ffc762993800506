#include "base/mistakes.h"

namespace tessera {

bool is_users_mistake(ExitCode code) {
  return code == ExitCode::kUsage || code == ExitCode::kBadData || code == ExitCode::kNoInput ||
         code == ExitCode::kBadConfig;
}

void fail_all(ExitCode code, const std::vector<std::string>& messages) {
  TESSERA_CHECK(!messages.empty());
  if (messages.size() == 1) throw Error(code, messages[0]);
  std::string text = fmt::format("{} mistakes:", messages.size());
  for (size_t i = 0; i < messages.size(); ++i) text += fmt::format(" ({}) {}", i + 1, messages[i]);
  throw Error(code, text);
}

}  // namespace tessera
