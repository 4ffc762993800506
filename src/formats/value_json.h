// JSON as a Value: the rows of data sets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/value.h"

namespace tessera {

// Maximum nesting of lists and objects, the document included.
inline constexpr int64_t kMaxValueDepth = 256;

// Parses one JSON document (RFC 8259, UTF-8). Integers beyond 64 bits become numbers, as do NaN,
// Infinity and -Infinity, which Python's json writes and Hugging Face's datasets read. Error(kBadData) naming
// `origin` and the line, counted from `first_line`: not JSON, a field that occurs twice in an object, nested
// too deeply.
Value parse_value(std::string_view json, const std::string& origin, int64_t first_line = 1);

}  // namespace tessera
