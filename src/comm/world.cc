#include "comm/world.h"

#include <unistd.h>

#include <array>
#include <cstdlib>

#include "base/error.h"

namespace tessera {

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

std::string describe_rank(int rank, const std::string& host) {
  return fmt::format("rank {} on host {}", rank, host);
}

std::string format_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (!text.empty()) text += ", ";
    text +=
        end - begin == 1 ? std::to_string(ranks[begin]) : fmt::format("{}-{}", ranks[begin], ranks[end - 1]);
    begin = end;
  }
  return text;
}

}  // namespace tessera
