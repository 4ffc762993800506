// Translates Oniguruma's syntax (Ruby flavor, UTF-8) to PCRE2's. Sources: doc/RE of Oniguruma 6.9,
// pcre2pattern(3) of PCRE2 10.42.
#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/regex/regex.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

// White_Space and its complement up to U+10FFFF, as members of a class.
constexpr std::string_view kSpace =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x00-\x08\x0e-\x1f\x21-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Outside a class, Oniguruma matches \w below U+0100 by its Latin-1 table, in which superscript digits and
// fractions are word characters.
constexpr std::string_view kWordOutsideClass =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
constexpr std::string_view kHex = "0-9a-fA-F";

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (!at_end()) {
      const char c = peek();
      if (c == '\\') {
        escape(/*in_class=*/false);
      } else if (c == '[') {
        take();
        character_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        brace();
      } else {
        out_ += c;
        take();
      }
    }
    return std::move(out_);
  }

 private:
  bool at_end() const { return at_ >= pattern_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  char take() { return pattern_[at_++]; }
  bool starts_with(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  [[noreturn]] void refuse(std::string_view what) const {
    fail(ExitCode::kBadConfig, "{}: the regular expression \"{}\" is not supported: {} at offset {}", where_,
         printable(pattern_, 200), what, at_);
  }

  void put_set(bool in_class, std::string_view members, bool negated = false) {
    if (in_class) {
      out_ += members;
    } else {
      out_ += negated ? "[^" : "[";
      out_ += members;
      out_ += ']';
    }
  }

  void escape(bool in_class) {
    take();  // the backslash
    if (at_end()) refuse("a backslash at the end");
    const char c = take();
    switch (c) {
      case 's':
        return put_set(in_class, kSpace);
      case 'S':
        return put_set(in_class, kNotSpace);
      case 'w':
        return put_set(in_class, in_class ? kWord : kWordOutsideClass);
      case 'h':
        return put_set(in_class, kHex);
      case 'W':
      case 'H':
        if (in_class) refuse("\\W or \\H inside a class");
        return put_set(false, c == 'W' ? kWordOutsideClass : kHex, /*negated=*/true);
      case 'b':
      case 'B':
        return in_class ? void(out_ += "\\b") : word_boundary(c == 'b');
      case 'v':
        out_ += R"(\x0b)";
        return;
      case 'p':
      case 'P':
        return property(c);
      case 'u':
        return code_point_escape();
      case 'Q':
      case 'E':  // quoting marks in PCRE2, letters in Ruby
        out_ += c;
        return;
      case 'C':
      case 'M':
      case 'G':
        refuse(std::string("\\") + c);
      default:
        out_ += '\\';
        out_ += c;
        // The remaining bytes of a multi-byte character follow unescaped.
    }
  }

  void word_boundary(bool positive) {
    const std::string word = "[" + std::string(kWordOutsideClass) + "]";
    out_ += "(?:(?<=" + word + (positive ? ")(?!" : ")(?=") + word + ")|(?<!" + word +
            (positive ? ")(?=" : ")(?!") + word + "))";
  }

  // \uHHHH
  void code_point_escape() {
    std::string digits;
    while (digits.size() < 4 && std::isxdigit(static_cast<unsigned char>(peek())) != 0) digits += take();
    if (digits.size() != 4) refuse("\\u without four hexadecimal digits");
    out_ += "\\x{" + digits + "}";
  }

  void property(char p) {
    if (peek() != '{') {  // \pL
      out_ += '\\';
      out_ += p;
      return;
    }
    const size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos) refuse("\\p{ without }");
    std::string name(pattern_.substr(at_ + 1, close - at_ - 1));
    at_ = close + 1;
    bool negated = p == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.erase(0, 1);
    }
    out_ += negated ? "\\P{" : "\\p{";
    out_ += pcre2_property(name);
    out_ += '}';
  }

  // Oniguruma ignores case, spaces, hyphens and underscores in names.
  std::string pcre2_property(const std::string& name) const {
    std::string key;
    for (const char c : name) {
      if (c != ' ' && c != '-' && c != '_')
        key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 22> kNames = {{
        {"any", "Any"},
        {"letter", "L"},
        {"uppercaseletter", "Lu"},
        {"lowercaseletter", "Ll"},
        {"titlecaseletter", "Lt"},
        {"modifierletter", "Lm"},
        {"otherletter", "Lo"},
        {"mark", "M"},
        {"nonspacingmark", "Mn"},
        {"number", "N"},
        {"decimalnumber", "Nd"},
        {"digit", "Nd"},
        {"letternumber", "Nl"},
        {"othernumber", "No"},
        {"punctuation", "P"},
        {"symbol", "S"},
        {"separator", "Z"},
        {"alpha", "Alphabetic"},
        {"upper", "Uppercase"},
        {"lower", "Lowercase"},
        {"space", "White_Space"},
        {"whitespace", "White_Space"},
    }};
    for (const auto& [from, to] : kNames) {
      if (key == from) return std::string(to);
    }
    if (key.size() > 2 && u_getPropertyValueEnum(UCHAR_SCRIPT, key.c_str()) != UCHAR_INVALID_CODE)
      return "sc:" + name;
    return name;
  }

  // After '['. The members of `nested` classes are added to the enclosing class.
  void character_class(bool nested = false) {
    if (!nested) {
      out_ += '[';
      if (peek() == '^') out_ += take();
    } else if (peek() == '^') {
      refuse("a negated class inside a class");
    }
    if (peek() == ']') {
      out_ += "\\]";
      take();
    }
    while (true) {
      if (at_end()) refuse("a class without ]");
      const char c = peek();
      if (c == ']') {
        take();
        if (!nested) out_ += ']';
        return;
      }
      if (c == '\\') {
        escape(/*in_class=*/true);
      } else if (starts_with("[:")) {
        posix_class();
      } else if (c == '[') {
        take();
        character_class(/*nested=*/true);
      } else if (starts_with("&&")) {
        refuse("a class intersection (&&)");
      } else {
        out_ += c;
        take();
      }
    }
  }

  void posix_class() {
    const size_t close = pattern_.find(":]", at_);
    if (close == std::string_view::npos) refuse("[: without :]");
    const std::string_view name = pattern_.substr(at_ + 2, close - at_ - 2);
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kClasses = {{
        {"alpha", R"(\p{Alphabetic})"},
        {"alnum", R"(\p{Alphabetic}\p{Nd})"},
        {"digit", R"(\p{Nd})"},
        {"lower", R"(\p{Lowercase})"},
        {"upper", R"(\p{Uppercase})"},
        {"space", kSpace},
        {"blank", R"(\x09\p{Zs})"},
        {"cntrl", R"(\p{Cc})"},
        {"word", kWord},
        {"xdigit", kHex},
    }};
    const auto* found = std::find_if(kClasses.begin(), kClasses.end(),
                                     [&](const auto& entry) { return entry.first == name; });
    if (found == kClasses.end()) refuse(fmt::format("the class [:{}:]", name));
    out_ += found->second;
    at_ = close + 2;
  }

  // Options of a group: Ruby's m is the s of PCRE2.
  void group() {
    out_ += take();
    if (peek() != '?') return;
    size_t ahead = 1;
    while (std::string_view("imx-").find(peek(ahead)) != std::string_view::npos && peek(ahead) != '\0')
      ++ahead;
    if (ahead == 1 || (peek(ahead) != ':' && peek(ahead) != ')')) return;
    for (; ahead > 0; --ahead) {
      const char c = take();
      out_ += c == 'm' ? 's' : c;
    }
  }

  // {n}, {n,}, {n,m} and {,m} are intervals; any other brace stands for itself.
  void brace() {
    size_t ahead = 1;
    const auto digits = [&] {
      const size_t begin = ahead;
      while (std::isdigit(static_cast<unsigned char>(peek(ahead))) != 0) ++ahead;
      return ahead - begin;
    };
    const size_t low_digits = digits();
    size_t high_digits = 0;
    const bool comma = peek(ahead) == ',';
    if (comma) {
      ++ahead;
      high_digits = digits();
    }
    if (peek(ahead) != '}' || low_digits + high_digits == 0) {
      out_ += "\\{";
      take();
      return;
    }
    if (peek(ahead + 1) == '+')
      refuse("an interval followed by + (possessive elsewhere, repeated in Oniguruma)");
    if (!comma && peek(ahead + 1) == '?') refuse("{n}? (lazy elsewhere, optional in Oniguruma)");
    std::string interval(pattern_.substr(at_, ahead + 1));
    if (low_digits == 0) interval.insert(1, "0");
    out_ += interval;
    at_ += ahead + 1;
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string pcre2_from_oniguruma(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

}  // namespace tessera
