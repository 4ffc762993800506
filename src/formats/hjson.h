// Hjson, the relaxed JSON that DeepSpeed accepts for its configuration: comments (#, //, /* */), missing or
// extra commas, unquoted keys and strings, single quotes, no braces around the document.
#pragma once

#include <string>
#include <string_view>

#include "formats/json.h"

namespace tessera {

// Parses one object. An unquoted value is a number, true, false or null if the text up to the next , ] }
// comment or line end is one; otherwise it is a string up to the end of the line. Rejected (kBadConfig,
// naming `origin` and the line): malformed UTF-8, NUL bytes, syntax errors, multi-line strings ('''),
// anything after the object, numbers out of range, duplicate keys in an object, nesting beyond max_depth.
Json parse_hjson(std::string_view text, const std::string& origin, int max_depth = 64);

}  // namespace tessera
