// Formats JSON values for messages.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera {

// Describes what was found instead of an expected value, kind first: "a list of 2, [0.9,null]", "an object
// with 1 field, {"k":1}", "an empty list"; numbers, text, true, false and null as JSON. One printable line,
// shortened.
std::string found_text(const nlohmann::json& value);

}  // namespace tessera
