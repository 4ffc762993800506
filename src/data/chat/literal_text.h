// Keeps what a user wrote from being read as special tokens.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/value.h"
#include "tokenizer/pipeline/added_tokens.h"

namespace tessera {

// Special tokens that occur in the messages of users and tools get a mark (a Unicode noncharacter) after
// their first character, which goes through a template with the text; where it comes out, the tokenizer is
// told not to match a special token.
class LiteralText {
 public:
  explicit LiteralText(const std::vector<std::string>& special_tokens);

  // Marks the strings in the messages whose role is neither system nor assistant.
  void mark(Value::List* messages) const;
  // Takes the marks out of a rendered text and returns where they were, ascending. The ranges, ascending
  // offsets in `text`, move with it.
  std::vector<int64_t> take_marks(std::string* text, std::vector<std::pair<int64_t, int64_t>>* ranges) const;

 private:
  void mark(Value* value) const;
  void mark(std::string* text) const;

  StringMatcher special_tokens_;
};

}  // namespace tessera
