#include "comm/socket/refusal_log.h"

#include <fmt/format.h>

#include "base/log.h"

namespace tessera {
namespace {

constexpr std::chrono::seconds kLineInterval{1};

}  // namespace

void RefusalLog::warn(const std::string& what, const std::string& address, const std::string& message,
                      Clock::time_point now) {
  auto known = lines_.find(address);
  if (known == lines_.end()) {
    const auto is_old = [now](const auto& line) { return now - line.second.time >= kLineInterval; };
    std::erase_if(lines_, [&](const auto& line) { return is_old(line) && line.second.num_more == 0; });
    if (lines_.size() >= kMaxAddresses) std::erase_if(lines_, is_old);
    if (lines_.size() >= kMaxAddresses) return;
    known = lines_.emplace(address, Line{now - kLineInterval, 0}).first;
  }
  Line& line = known->second;
  if (now - line.time < kLineInterval) {
    ++line.num_more;
    return;
  }
  const std::string more =
      line.num_more > 0 ? fmt::format(" (and {} more since the last such line)", line.num_more) : "";
  log_warning("{}: {}{}", what, message, more);
  line = {now, 0};
}

}  // namespace tessera
