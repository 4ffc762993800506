// Regular expressions and plain strings as tokenizer.json uses them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "formats/json.h"

namespace tessera {

// Translates a pattern from Oniguruma's (Ruby) syntax, which Hugging Face uses, to PCRE2's. Rewrites these
// differences: in Oniguruma \s is White_Space (PCRE2 adds U+180E), \w includes marks and Alphabetic, \h is a
// hexadecimal digit, \v is U+000B, {,n} is an interval, (?m) lets the dot match a newline, \p{Han} is the
// script itself, a class inside a class is a union. Other constructs that differ (class intersection, {n,m}+,
// negated class inside a class) are rejected: Error(kBadConfig) starting with `where`.
std::string pcre2_from_oniguruma(std::string_view pattern, const std::string& where);

// A compiled pattern in Oniguruma's syntax. Thread-safe.
class Regex {
 public:
  Regex(std::string_view pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Begin and end of every match in `text` (well-formed UTF-8), left to right, without overlap. An empty
  // match right after a match is skipped. Error(kBadConfig) if matching takes too many steps.
  std::vector<std::pair<int64_t, int64_t>> find_all(std::string_view text) const;

  const std::string& pattern() const { return pattern_; }

 private:
  struct Code;
  std::string pattern_;
  std::string where_;
  std::unique_ptr<Code> code_;
};

// A part of a text divided by a pattern.
struct TextPart {
  int64_t begin;
  int64_t end;
  bool is_match;
};

// {"Regex": ...} or {"String": ...} of tokenizer.json.
using TextPattern = std::variant<std::string, Regex>;
TextPattern read_pattern(const JsonNode& node);

// A Replace of tokenizer.json: every match becomes `content`. A reference to a group is refused, since
// versions of Hugging Face tokenizers differ on what $1 means.
struct Replacement {
  TextPattern pattern;
  std::string content;
};
std::shared_ptr<const Replacement> read_replacement(const JsonNode& node);

// The parts of `text`, in order and covering all of it: the matches of the pattern and the text between them.
std::vector<TextPart> divide(std::string_view text, const TextPattern& pattern);

// `text` with every match replaced by `content`, taken literally.
std::string replace_all(std::string_view text, const TextPattern& pattern, std::string_view content);
// nullopt if that is longer than max_bytes.
std::optional<std::string> replace_all(std::string_view text, const TextPattern& pattern,
                                       std::string_view content, int64_t max_bytes);

}  // namespace tessera
