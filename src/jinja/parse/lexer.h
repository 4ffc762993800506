// Splits a template into text and the tokens of its tags, as Jinja2's lexer does with trim_blocks and
// lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::jinja {

enum class TokenKind : uint8_t {
  kText,             // outside tags, whitespace control applied
  kExpressionBegin,  // {{
  kExpressionEnd,
  kTagBegin,  // {%
  kTagEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  // text is the operator
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // of a string: its value; of numbers: digits without underscores
};

// "'endif'", "a string", "end of template": for messages.
std::string describe(const Token& token);

// Throws Error(kBadData) "origin: line 3: ...". The last token is kEnd.
std::vector<Token> tokenize(std::string_view source, const std::string& origin);

}  // namespace tessera::jinja
