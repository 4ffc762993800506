// Hjson, the relaxed JSON in which DeepSpeed reads its configuration: comments (#, //, /* */), commas that
// are missing or too many, keys and texts without quotes, single quotes, no braces around the whole.
#pragma once

#include <string>
#include <string_view>

#include "formats/json.h"

namespace tessera {

// Parses one object. A value that starts without a quote is a number, true, false or null where it is one up
// to the next , ] } comment or line end; otherwise it is text up to the end of the line. Refused (kBadConfig,
// naming `origin` and the line): malformed UTF-8, NUL bytes, syntax errors, texts over several lines ('''),
// anything behind the object, numbers out of range, a key twice in one object, nesting beyond max_depth.
Json parse_hjson(std::string_view text, const std::string& origin, int max_depth = 64);

}  // namespace tessera
