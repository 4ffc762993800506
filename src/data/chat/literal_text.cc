#include "data/chat/literal_text.h"

#include <algorithm>

namespace tessera {

LiteralText::LiteralText(const std::vector<std::string>& special_tokens) {
  for (const std::string& token : special_tokens) {
    if (token.size() > 1) special_tokens_.add(token, 0);
    max_bytes_ = std::max(max_bytes_, std::ssize(token));
  }
}

std::vector<int64_t> LiteralText::barriers(std::string_view text, std::span<const jinja::TracedSpan> spans,
                                           const std::function<bool(int64_t)>& is_literal) const {
  std::vector<int64_t> places;
  int64_t at = 0;
  StringMatcher::Match match;
  for (const jinja::TracedSpan& span : spans) {
    if (!is_literal(span.id)) continue;
    at = std::max(at, span.begin - max_bytes_ + 1);
    const std::string_view head = text.substr(0, static_cast<size_t>(span.end + max_bytes_));
    for (; special_tokens_.find(head, at, &match) && match.begin < span.end; at = match.begin + 1) {
      if (match.end <= span.begin) continue;
      // A special token starts with a whole character.
      int64_t after = match.begin + 1;
      while ((static_cast<unsigned char>(text[static_cast<size_t>(after)]) & 0xC0) == 0x80) ++after;
      places.push_back(after);
    }
  }
  return places;
}

int64_t LiteralText::before_special_token(std::string_view text, int64_t at) const {
  StringMatcher::Match match;
  for (int64_t from = std::max<int64_t>(0, at - max_bytes_ + 1);
       special_tokens_.find(text, from, &match) && match.begin < at; from = match.begin + 1) {
    if (at < match.end) return match.begin;
  }
  return at;
}

}  // namespace tessera
