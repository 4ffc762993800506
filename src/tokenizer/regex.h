// Regular expressions and plain strings as tokenizer.json uses them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera {

// The pattern in PCRE2's syntax of one in Oniguruma's (Ruby) syntax, which is what Hugging Face compiles.
// Differences that matter and are rewritten: \s is White_Space (PCRE2 adds U+180E), \w holds marks and
// Alphabetic, \h is a hexadecimal digit, \v is U+000B, {,n} is an interval, (?m) lets the dot match a
// newline, \p{Han} is the script itself, a class inside a class is a union. Constructs that mean something
// else in the two (class intersection, {n,m}+, negated class inside a class) are refused: Error(kBadConfig)
// that starts with `where`.
std::string pcre2_from_oniguruma(std::string_view pattern, const std::string& where);

// A compiled pattern of Oniguruma's syntax; safe from several threads.
class Regex {
 public:
  Regex(std::string_view pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Begin and end of every match in `text` (well-formed UTF-8), left to right, without overlap. An empty
  // match right after a match is skipped. Error(kBadConfig) when matching takes too many steps.
  std::vector<std::pair<int64_t, int64_t>> find_all(std::string_view text) const;

  const std::string& pattern() const { return pattern_; }

 private:
  struct Code;
  std::string pattern_;
  std::string where_;
  std::unique_ptr<Code> code_;
};

// Part of a text that a pattern divides.
struct TextPart {
  int64_t begin;
  int64_t end;
  bool is_match;
};

// {"Regex": ...} or {"String": ...} of tokenizer.json.
using TextPattern = std::variant<std::string, Regex>;

// The parts of `text`, in order, covering all of it: what the pattern matches and what lies between.
std::vector<TextPart> divide(std::string_view text, const TextPattern& pattern);

// `text` with every match replaced by `content` as it stands.
std::string replace_all(std::string_view text, const TextPattern& pattern, std::string_view content);

}  // namespace tessera
