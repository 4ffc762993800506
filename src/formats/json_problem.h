// Says where and why a text is not JSON, in our own words: the JSON library's exceptions are not fit for
// users.
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
  bool is_at_end = false;  // the text is valid so far but ends too early

  std::string text() const;  // "line 2, column 7: expected ..., found ..."
};

// The first place where `text` violates RFC 8259, nullopt if it is valid JSON (a leading byte order mark is
// allowed). Numbers out of double's range are rejected too. Handles nesting of any depth.
std::optional<JsonProblem> find_json_problem(std::string_view text);

// The problem in a text that a JSON parser has rejected.
JsonProblem json_problem(std::string_view text);

}  // namespace tessera
