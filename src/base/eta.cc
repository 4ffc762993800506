#include "base/eta.h"

#include <fmt/format.h>

#include <cstdint>

#include "base/text.h"

namespace tessera {

std::string format_eta(const std::optional<double>& seconds) {
  constexpr double kHour = 3600, kDay = 24 * kHour;
  if (!seconds || !(*seconds < 10'000 * kDay)) return "--:--";
  if (*seconds < 100 * kHour) return format_duration(*seconds);
  const auto hours = static_cast<int64_t>(*seconds / kHour);
  return fmt::format("{}d {:02}h", hours / 24, hours % 24);
}

}  // namespace tessera
