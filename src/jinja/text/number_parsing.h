// Numbers as Python's int(text, base) and float(text) read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::jinja {

// Empty if the text is not a number. `overflow` is set if it is one that does not fit in 64 bits.
std::optional<int64_t> parse_integer(std::string_view text, int base, bool& overflow);
std::optional<double> parse_float(std::string_view text);

}  // namespace tessera::jinja
