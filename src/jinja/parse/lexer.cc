#include "jinja/parse/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "jinja/text/unicode_text.h"

namespace tessera::jinja {
namespace {

constexpr std::array<std::string_view, 6> kTwoCharacterOperators = {"//", "**", "==", "!=", ">=", "<="};
constexpr std::string_view kOneCharacterOperators = "+-/*%~[](){}><=.:|,;";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_tag_character(char c) { return c == '%' || c == '{' || c == '#'; }
// \r\n and \r become \n; one line break at the end is dropped.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& origin)
      : source_(normalize_newlines(source)), origin_(origin) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) text_until_tag();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(pos_); }
  bool at(std::string_view text) const { return rest().substr(0, text.size()) == text; }

  [[noreturn]] void fail_here(const std::string& message) const {
    fail(ExitCode::kBadData, "{}: line {}: {}", origin_, line_, message);
  }

  void add(TokenKind kind, std::string_view text) { tokens_.push_back({kind, line_, std::string(text)}); }

  void advance(size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(pos_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(pos_ + count), '\n'));
    pos_ += count;
  }

  void skip_space() { advance(rest().size() - strip(rest(), Side::kLeft).size()); }

  // Skips the closing "%}", "-%}", "+%}" of a tag; false if it is not there.
  bool close(std::string_view end, bool has_plus, bool trims_newline) {
    if (at("-") && rest().substr(1, 2) == end) {
      advance(3);
      skip_space();
      return true;
    }
    if (has_plus && at("+") && rest().substr(1, 2) == end) {
      advance(3);
      return true;
    }
    if (!at(end)) return false;
    advance(2 + (trims_newline && rest().substr(2, 1) == "\n" ? 1 : 0));
    return true;
  }

  // Text before a tag, stripped as the tag's sign and lstrip_blocks ask.
  void add_text(std::string_view text, char sign, bool is_expression) {
    std::string_view kept = text;
    if (sign == '-') {
      kept = strip(text, Side::kRight);
    } else if (sign != '+' && !is_expression) {
      const size_t line_begin = text.rfind('\n') + 1;  // 0 without a line break
      if ((line_begin > 0 || pos_ == 0 || source_[pos_ - 1] == '\n') &&
          strip(text.substr(line_begin), Side::kLeft).empty()) {
        kept = text.substr(0, line_begin);
      }
    }
    if (!kept.empty()) add(TokenKind::kText, kept);
    advance(text.size());
  }

  void text_until_tag() {
    size_t begin = source_.find('{', pos_);
    while (begin != std::string::npos &&
           (begin + 1 == source_.size() || !is_tag_character(source_[begin + 1]))) {
      begin = source_.find('{', begin + 1);
    }
    if (begin == std::string::npos) {
      add(TokenKind::kText, rest());
      return advance(rest().size());
    }
    const char type = source_[begin + 1];
    const char after = begin + 2 < source_.size() ? source_[begin + 2] : ' ';
    const char sign = after == '-' || after == '+' ? after : ' ';
    add_text(rest().substr(0, begin - pos_), sign, type == '{');
    advance(sign == ' ' ? 2 : 3);
    if (type == '#') return comment();
    if (type == '%' && raw()) return;
    tag(type == '%');
  }

  void comment() {
    const size_t end = rest().find("#}");
    if (end == std::string::npos)
      fail_here("expected '#}' at the end of this comment, found the end of the template");
    const char before = end > 0 ? rest()[end - 1] : ' ';
    advance(before == '-' || before == '+' ? end - 1 : end);
    close("#}", true, true);
  }

  // After "{%": a raw block, whose text is taken as it is.
  bool raw() {
    std::string_view text = strip(rest(), Side::kLeft);
    if (text.substr(0, 3) != "raw") return false;
    text = strip(text.substr(3), Side::kLeft);
    if (text.substr(0, 2) != "%}" && text.substr(0, 3) != "-%}") return false;
    advance(rest().size() - text.size());
    close("%}", false, false);
    for (size_t begin = source_.find("{%", pos_); begin != std::string::npos;
         begin = source_.find("{%", begin + 1)) {
      std::string_view tail = std::string_view(source_).substr(begin + 2);
      const char sign = !tail.empty() && (tail[0] == '-' || tail[0] == '+') ? tail[0] : ' ';
      if (sign != ' ') tail.remove_prefix(1);
      tail = strip(tail, Side::kLeft);
      if (tail.substr(0, 6) != "endraw") continue;
      tail = strip(tail.substr(6), Side::kLeft);
      const size_t skip = !tail.empty() && (tail[0] == '-' || tail[0] == '+') ? 1 : 0;
      if (tail.substr(skip, 2) != "%}") continue;
      add_text(rest().substr(0, begin - pos_), sign, false);
      advance(rest().size() - tail.size());
      close("%}", true, true);
      return true;
    }
    fail_here("expected '{% endraw %}', found the end of the template");
  }

  void tag(bool is_block) {
    const int begin_line = line_;
    add(is_block ? TokenKind::kTagBegin : TokenKind::kExpressionBegin, "");
    std::string open;  // brackets that are not closed yet
    while (true) {
      if (pos_ >= source_.size()) {
        fail(ExitCode::kBadData,
             "{}: line {}: expected '{}' at the end of this tag, found the end of the template", origin_,
             begin_line, is_block ? "%}" : "}}");
      }
      if (open.empty()) {
        const int line = line_;
        if (close(is_block ? "%}" : "}}", is_block, is_block)) {
          tokens_.push_back({is_block ? TokenKind::kTagEnd : TokenKind::kExpressionEnd, line, ""});
          return;
        }
      }
      const size_t before = pos_;
      skip_space();
      if (pos_ == before) token(open);
    }
  }

  void token(std::string& open) {
    const char c = source_[pos_];
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return quoted(c);
    size_t name_end = pos_;
    for (size_t next = pos_; next < source_.size() && is_identifier_part(next_code_point(source_, next));)
      name_end = next;
    if (name_end > pos_) {
      add(TokenKind::kName, rest().substr(0, name_end - pos_));
      return advance(name_end - pos_);
    }
    for (const std::string_view both : kTwoCharacterOperators) {
      if (at(both)) {
        add(TokenKind::kOperator, both);
        return advance(2);
      }
    }
    if (kOneCharacterOperators.find(c) == std::string_view::npos) {
      size_t end = pos_;
      next_code_point(source_, end);
      fail_here(fmt::format("unexpected character '{}' in a tag", printable(rest().substr(0, end - pos_))));
    }
    if (c == '(') open += ')';
    if (c == '[') open += ']';
    if (c == '{') open += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail_here(fmt::format("unexpected '{}', which closes nothing", c));
      if (open.back() != c) fail_here(fmt::format("expected '{}', found '{}'", open.back(), c));
      open.pop_back();
    }
    add(TokenKind::kOperator, rest().substr(0, 1));
    advance(1);
  }

  // Digits with single underscores between them; how many bytes.
  size_t digits(size_t begin, int base = 10) const {
    const auto is_digit_of_base = [&](size_t i) {
      if (i >= source_.size()) return false;
      const auto c = static_cast<unsigned char>(source_[i]);
      if (base == 16) return std::isxdigit(c) != 0;
      return c >= '0' && c < '0' + base;
    };
    size_t end = begin;
    while (is_digit_of_base(end) ||
           (end < source_.size() && source_[end] == '_' && is_digit_of_base(end + 1)))
      ++end;
    return end - begin;
  }

  void number() {
    const char second = pos_ + 1 < source_.size() ? static_cast<char>(std::tolower(source_[pos_ + 1])) : ' ';
    size_t size = 0;
    TokenKind kind = TokenKind::kInteger;
    if (source_[pos_] == '0' && (second == 'x' || second == 'o' || second == 'b')) {
      const size_t count = digits(pos_ + 2, second == 'x' ? 16 : second == 'o' ? 8 : 2);
      if (count > 0) size = 2 + count;
    }
    if (size == 0) {
      size = digits(pos_);
      const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';
      const auto take_exponent = [&](size_t from) -> size_t {
        if (from >= source_.size() || (source_[from] != 'e' && source_[from] != 'E')) return 0;
        const size_t sign =
            from + 1 < source_.size() && (source_[from + 1] == '+' || source_[from + 1] == '-') ? 1 : 0;
        const size_t count = digits(from + 1 + sign);
        return count > 0 ? 1 + sign + count : 0;
      };
      size_t fraction = 0;
      if (pos_ + size < source_.size() && source_[pos_ + size] == '.') {
        const size_t count = is_digit(source_.c_str()[pos_ + size + 1]) ? digits(pos_ + size + 1) : 0;
        if (count > 0) fraction = 1 + count;
      }
      const size_t exponent = take_exponent(pos_ + size + fraction);
      if (!after_dot && fraction + exponent > 0) {
        size += fraction + exponent;
        kind = TokenKind::kFloat;
      } else if (source_[pos_] == '0') {
        size = 1;
        while (pos_ + size < source_.size() && source_[pos_ + size] == '0') ++size;
      }
    }
    std::string text(rest().substr(0, size));
    std::erase(text, '_');
    add(kind, text);
    advance(size);
  }

  void quoted(char quote) {
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail_here(fmt::format("expected {} at the end of this string", quote));
    add(TokenKind::kString, unescape(std::string_view(source_).substr(pos_ + 1, end - pos_ - 1)));
    advance(end + 1 - pos_);
  }

  // Python's escape sequences, without \N{name}.
  std::string unescape(std::string_view text) const {
    constexpr std::string_view kLetters = "abfnrtv\\'\"";
    constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      if (c == '\n') continue;
      if (const size_t at = kLetters.find(c); at != std::string_view::npos) {
        out += kValues[at];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_utf8(code_point(text.substr(i + 1, count), count, 16), &out);
        i += count;
      } else if (c >= '0' && c <= '7') {
        size_t count = 1;
        while (count < 3 && i + count < text.size() && text[i + count] >= '0' && text[i + count] <= '7')
          ++count;
        append_utf8(code_point(text.substr(i, count), count, 8), &out);
        i += count - 1;
      } else if (c == 'N') {
        fail_here("escapes \\N{...} by name are not supported: write the character itself");
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  char32_t code_point(std::string_view digits, size_t count, int base) const {
    const auto bad = [&](char c) { return base == 16 && std::isxdigit(static_cast<unsigned char>(c)) == 0; };
    if (digits.size() < count || std::any_of(digits.begin(), digits.end(), bad)) {
      fail_here(fmt::format("expected {} hexadecimal digits in an escape sequence", count));
    }
    const auto value = static_cast<char32_t>(std::stoull(std::string(digits), nullptr, base));
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      fail_here(fmt::format("the escape sequence {} is not a character", digits));
    }
    return value;
  }

  std::string source_;
  const std::string& origin_;
  size_t pos_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kText:
      return "text";
    case TokenKind::kExpressionBegin:
      return "'{{'";
    case TokenKind::kExpressionEnd:
      return "'}}'";
    case TokenKind::kTagBegin:
      return "'{%'";
    case TokenKind::kTagEnd:
      return "'%}'";
    case TokenKind::kString:
      return fmt::format("the string '{}'", printable(token.text, 40));
    case TokenKind::kName:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
    case TokenKind::kOperator:
      return fmt::format("'{}'", printable(token.text, 40));
    case TokenKind::kEnd:
      return "the end of the template";
  }
  return "";
}

std::vector<Token> tokenize(std::string_view source, const std::string& origin) {
  return Lexer(source, origin).run();
}

}  // namespace tessera::jinja
