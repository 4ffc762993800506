#pragma once

#include <optional>
#include <string>

namespace tessera {

// The time left: "01:23", "1:02:03", "4d 04h"; "--:--" if it is not known.
std::string format_eta(const std::optional<double>& seconds);

}  // namespace tessera
