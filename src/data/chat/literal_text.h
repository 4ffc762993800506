// Keeps what a user wrote from being read as special tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/template.h"
#include "tokenizer/pipeline/added_tokens.h"

namespace tessera {

// Finds special tokens in the parts of a rendered text that users wrote: the tokenizer is told not to match
// them.
class LiteralText {
 public:
  explicit LiteralText(const std::vector<std::string>& special_tokens);

  // A place within each special token that overlaps one of the spans, those whose id is literal. Ascending.
  std::vector<int64_t> barriers(std::string_view text, std::span<const jinja::TracedSpan> spans,
                                const std::function<bool(int64_t id)>& is_literal) const;
  // The start of the special token that `at` is inside of, or `at`.
  int64_t before_special_token(std::string_view text, int64_t at) const;

 private:
  StringMatcher special_tokens_;
  int64_t max_bytes_ = 0;  // of a special token
};

}  // namespace tessera
