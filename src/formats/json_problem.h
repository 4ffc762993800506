// Where and why a text is not JSON: what the JSON library says, in one line and without its names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

struct JsonProblem {
  int64_t line = 1;        // from 1
  int64_t column = 1;      // in bytes, from 1
  int64_t offset = 0;      // in bytes, from 0
  std::string what;        // "found '1': unexpected number literal; expected ':'"
  bool is_at_end = false;  // the text is valid so far but ends too early

  std::string text() const;  // "line 2, column 7: expected ..., found ..."
};

// The first place where `text` violates RFC 8259, nullopt if it is valid JSON (a leading byte order mark is
// allowed). Numbers out of double's range are rejected too. Handles nesting of any depth.
std::optional<JsonProblem> find_json_problem(std::string_view text);

// The problem in a text that a JSON parser has rejected.
JsonProblem json_problem(std::string_view text);

}  // namespace tessera
