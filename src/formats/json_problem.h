// Where and why a text is not JSON, in our own words: the JSON library's exceptions are not for users.
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
  std::string what;        // "expected ':' after a key, found '1'"
  bool is_at_end = false;  // the text ends too early and nothing before is wrong

  std::string text() const;  // "line 2, column 7: expected ..., found ..."
};

// The first place at which `text` departs from RFC 8259; nothing for a JSON text (a byte order mark may stand
// before it). Numbers that no double holds are refused as well. Takes nesting of any depth.
std::optional<JsonProblem> find_json_problem(std::string_view text);

// The problem of a text that a JSON parser refused.
JsonProblem json_problem(std::string_view text);

}  // namespace tessera
