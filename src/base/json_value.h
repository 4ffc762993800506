// JSON values in messages.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera {

// What was found in place of an expected value, its kind first: "a list of 2, [0.9,null]", "an object with 1
// field, {"k":1}", "an empty list"; a number, text, true, false or null as JSON. One printable line,
// shortened.
std::string found_text(const nlohmann::json& value);

}  // namespace tessera
