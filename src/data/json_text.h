// The text of one JSONL record.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

// Levels of nested arrays and objects taken, the record itself included.
inline constexpr int64_t kMaxJsonDepth = 256;

// The string under `column` in the JSON object `json`. Nothing else of the object is kept. Error(kBadData)
// naming `origin` and the line, counted from `first_line`: not JSON (RFC 8259), not an object, no such
// column (with those found), found twice, not a string, nested too deep.
std::string extract_json_text(std::string_view json, const std::string& column, const std::string& origin,
                              int64_t first_line);

}  // namespace tessera
