// Texts that consist of fields, and fields that are numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// The parts between separators; at least one.
std::vector<std::string> split(std::string_view text, char separator);
// The whole text as a decimal number; nullopt if it is not one.
std::optional<int64_t> parse_integer(std::string_view text);
std::optional<double> parse_number(std::string_view text);

}  // namespace tessera
