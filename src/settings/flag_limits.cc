#include "settings/flag_limits.h"

#include <cstdlib>
#include <vector>

#include "base/error.h"

namespace tessera {

std::string Range::describe() const {
  if (maximum == kInfinity) return fmt::format("{} {}", open_begin ? "above" : "of at least", minimum);
  return fmt::format("from {}{} to {}{}", open_begin ? "above " : "", minimum, open_end ? "below " : "",
                     maximum);
}

void limit(Flag& flag, const Range& range) {
  flag.set = [set = flag.set, get = flag.get, name = flag.name, range,
              expected = flag.type == FlagType::kInt ? "a number" : "a finite number"](
                 const std::vector<std::string>& values) {
    set(values);
    for (const std::string& value : get()) {
      if (range.contains(std::strtod(value.c_str(), nullptr))) continue;
      fail(ExitCode::kUsage, "--{}: expected {} {}, found {}", name, expected, range.describe(), value);
    }
  };
}

void limit_steps(Flag& flag, bool allow_zero) {
  flag.set = [set = flag.set, get = flag.get, name = flag.name,
              allow_zero](const std::vector<std::string>& values) {
    set(values);
    for (const std::string& text : get()) {
      const double value = std::strtod(text.c_str(), nullptr);
      const bool in_range = std::isfinite(value) && (allow_zero ? value >= 0 : value > 0) && value <= 0x1p53;
      if (in_range && (value < 1 || value == std::floor(value))) continue;
      fail(ExitCode::kUsage,
           "--{}: expected a whole number of steps or a fraction of all steps {} and below 1, found {}", name,
           allow_zero ? "of at least 0" : "above 0", text);
    }
  };
}

}  // namespace tessera
