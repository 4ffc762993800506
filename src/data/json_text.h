// Extracts the text of a JSONL record.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

// Maximum nesting of arrays and objects, including the record itself.
inline constexpr int64_t kMaxJsonDepth = 256;

// The string under `column` in the JSON object `json`; nothing else in the object is stored. Error(kBadData)
// naming `origin` and the line, counted from `first_line`: not JSON (RFC 8259), not an object, no such column
// (lists those found), duplicate column, not a string, nested too deeply.
std::string extract_json_text(std::string_view json, const std::string& column, const std::string& origin,
                              int64_t first_line);

}  // namespace tessera
