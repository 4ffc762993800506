#include "tokenizer/regex/fast_scanner.h"

namespace tessera {
namespace {

// Length of 's 't 're 've 'm 'll 'd at `at` (which points to the apostrophe), or 0. With ignore_case U+017F,
// the long s, counts as s: the only non-ASCII letter that folds to one of these.
int64_t contraction_length(const char* at, const char* end, bool ignore_case) {
  const int64_t available = end - at;
  if (available < 2) return 0;
  const auto letter = [&](int64_t i) {
    const char c = at[i];
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  };
  const char first = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (available < 3) return 0;
  const char second = letter(2);
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  if (ignore_case && first == '\xC5' && at[2] == '\xBF') return 3;
  return 0;
}

}  // namespace

std::optional<KnownPattern> known_pattern(std::string_view regex) {
  if (regex == kGpt2Pattern) return KnownPattern::kGpt2;
  if (regex == kLlama3Pattern) return KnownPattern::kLlama3;
  if (regex == kQwen2Pattern) return KnownPattern::kQwen2;
  return std::nullopt;
}

FastScanner::FastScanner(KnownPattern pattern)
    : pattern_(pattern),
      max_digits_(pattern == KnownPattern::kLlama3 ? 3 : 1),
      table_(&CharClassTable::get()) {
  for (size_t i = 0; i < ascii_.size(); ++i) ascii_[i] = (*table_)[static_cast<char32_t>(i)];
}

inline FastScanner::Char FastScanner::classify(const char* at) const {
  const auto byte = static_cast<unsigned char>(*at);
  if (byte < 0x80) return {ascii_[byte], 1};
  const auto [code_point, size_bytes] = decode_utf8(at);
  return {(*table_)[code_point], size_bytes};
}

inline const char* FastScanner::skip(CharClass char_class, const char* at, const char* end) const {
  while (at < end) {
    const Char c = classify(at);
    if (c.char_class != char_class) break;
    at += c.size_bytes;
  }
  return at;
}

const char* FastScanner::match_end(const char* begin, const char* end) const {
  return pattern_ == KnownPattern::kGpt2 ? gpt2_end(begin, end) : llama3_end(begin, end);
}

const char* FastScanner::gpt2_end(const char* begin, const char* end) const {
  // 's|'t|'re|'ve|'m|'ll|'d
  if (*begin == '\'') {
    if (const int64_t length = contraction_length(begin, end, /*ignore_case=*/false); length > 0)
      return begin + length;
  }
  // ` ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+`
  const char* first = *begin == ' ' && begin + 1 < end ? begin + 1 : begin;
  const Char c = classify(first);
  if (c.char_class != CharClass::kSpace && c.char_class != CharClass::kNewline)
    return skip(c.char_class, first + c.size_bytes, end);
  return whitespace_end(begin, end, /*newlines_end_it=*/false);
}

const char* FastScanner::llama3_end(const char* begin, const char* end) const {
  // (?i:'s|'t|'re|'ve|'m|'ll|'d)
  if (*begin == '\'') {
    if (const int64_t length = contraction_length(begin, end, /*ignore_case=*/true); length > 0)
      return begin + length;
  }
  // [^\r\n\p{L}\p{N}]?\p{L}+
  const Char first = classify(begin);
  const char* second = begin + first.size_bytes;
  if (first.char_class == CharClass::kLetter) return skip(CharClass::kLetter, second, end);
  if (first.char_class == CharClass::kNumber) {  // \p{N}{1,3} or \p{N}
    const char* at = second;
    for (int64_t digits = 1; digits < max_digits_ && at < end; ++digits) {
      const Char c = classify(at);
      if (c.char_class != CharClass::kNumber) break;
      at += c.size_bytes;
    }
    return at;
  }
  Char next{CharClass::kNewline, 0};  // at the end of the text: nothing that continues a match
  if (second < end) next = classify(second);
  if (first.char_class != CharClass::kNewline && next.char_class == CharClass::kLetter)
    return skip(CharClass::kLetter, second + next.size_bytes, end);
  // ` ?[^\s\p{L}\p{N}]+[\r\n]*`
  const bool after_space = *begin == ' ' && next.char_class == CharClass::kOther;
  if (after_space || first.char_class == CharClass::kOther) {
    const char* others_end = skip(CharClass::kOther, after_space ? second + next.size_bytes : second, end);
    return skip(CharClass::kNewline, others_end, end);
  }
  return whitespace_end(begin, end, /*newlines_end_it=*/true);
}

// `\s*[\r\n]+|\s+(?!\S)|\s+`, the first alternative only with `newlines_end_it`; `begin` is at whitespace.
const char* FastScanner::whitespace_end(const char* begin, const char* end, bool newlines_end_it) const {
  const char* at = begin;
  const char* last = begin;  // the run's last character
  const char* after_newline = nullptr;
  while (at < end) {
    const Char c = classify(at);
    if (c.char_class != CharClass::kSpace && c.char_class != CharClass::kNewline) break;
    last = at;
    at += c.size_bytes;
    if (c.char_class == CharClass::kNewline) after_newline = at;
  }
  if (newlines_end_it && after_newline != nullptr) return after_newline;
  // The lookahead leaves the last character to the next match, unless it is the only one.
  return at == end || last == begin ? at : last;
}

}  // namespace tessera
