#include "formats/json_problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/byte_order_mark.h"

namespace tessera {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex_digit(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text), invalid_utf8_(find_invalid_utf8(text)) {}

  std::optional<JsonProblem> run() {
    if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
    while (!problem_ && !is_done_) step();
    return std::move(problem_);
  }

 private:
  enum class Next { kValue, kFirstElement, kAfterElement, kFirstKey, kKey, kColon, kAfterMember, kEnd };

  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }

  // The word or character at the current position.
  std::string found() const {
    if (at_end()) return "the end of the text";
    size_t size = 0;
    const std::string_view rest = text_.substr(at_);
    while (size < rest.size() && (is_letter(rest[size]) || is_digit(rest[size]))) ++size;
    // A multi-byte character contains no letter or digit bytes.
    while (size == 0 || (size < rest.size() && (rest[size] & 0xC0) == 0x80)) ++size;
    return "'" + printable(rest.substr(0, size), 24) + "'";
  }

  void stop(std::string what, bool is_at_end) {
    const std::string_view before = text_.substr(0, at_);
    const size_t line_end = before.rfind('\n');
    problem_ = {.line = 1 + std::count(before.begin(), before.end(), '\n'),
                .column = static_cast<int64_t>(line_end == before.npos ? at_ + 1 : at_ - line_end),
                .offset = static_cast<int64_t>(at_),
                .what = std::move(what),
                .is_at_end = is_at_end};
  }
  void stop_here(std::string_view expected) {
    stop(fmt::format("expected {}, found {}", expected, found()), at_end());
  }

  // Consumes one token.
  void step() {
    while (!at_end() && std::string_view(" \t\r\n").find(peek()) != std::string_view::npos) ++at_;
    switch (next_) {
      case Next::kValue:
        return value("a value");
      case Next::kFirstElement:
        return peek() == ']' ? close() : value("a value or ']'");
      case Next::kAfterElement:
        return peek() == ']' ? close() : take(',', Next::kValue, "',' or ']'");
      case Next::kFirstKey:
        return peek() == '}' ? close() : key("a key in double quotes or '}'");
      case Next::kKey:
        return key("a key in double quotes");
      case Next::kColon:
        return take(':', Next::kValue, "':' after the key");
      case Next::kAfterMember:
        return peek() == '}' ? close() : take(',', Next::kKey, "',' or '}'");
      case Next::kEnd:
        is_done_ = true;
        if (!at_end()) stop_here("nothing after the JSON value");
    }
  }

  void take(char token, Next next, std::string_view expected) {
    if (at_end() || peek() != token) return stop_here(expected);
    ++at_;
    next_ = next;
  }

  void close() {
    ++at_;
    in_object_.pop_back();
    end_value();
  }

  void end_value() {
    next_ = in_object_.empty() ? Next::kEnd : in_object_.back() ? Next::kAfterMember : Next::kAfterElement;
  }

  void key(std::string_view expected) {
    if (peek() != '"') return stop_here(expected);
    string();
    next_ = Next::kColon;
  }

  void value(std::string_view expected) {
    const char c = peek();
    if (c == '{' || c == '[') {
      ++at_;
      in_object_.push_back(c == '{');
      next_ = c == '{' ? Next::kFirstKey : Next::kFirstElement;
      return;
    }
    if (c == '"') {
      string();
    } else if (c == '-' || is_digit(c)) {
      number();
    } else {
      constexpr std::array<std::string_view, 3> kWords = {"true", "false", "null"};
      const auto word = std::find_if(kWords.begin(), kWords.end(), [&](std::string_view name) {
        return text_.substr(at_).starts_with(name);
      });
      if (word == kWords.end()) {
        stop_here(expected);
        problem_->is_at_end |= is_cut_word();
        return;
      }
      at_ += word->size();
    }
    end_value();
  }

  // "tru" at the end of the text.
  bool is_cut_word() const {
    const std::string_view rest = text_.substr(at_);
    return !rest.empty() &&
           (std::string_view("true").starts_with(rest) || std::string_view("false").starts_with(rest) ||
            std::string_view("null").starts_with(rest));
  }

  void digits() {
    if (!is_digit(peek())) return stop_here("a digit");
    while (is_digit(peek())) ++at_;
  }

  void number() {
    const size_t begin = at_;
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
    } else {
      digits();
    }
    if (!problem_ && peek() == '.') {
      ++at_;
      digits();
    }
    if (!problem_ && (peek() == 'e' || peek() == 'E')) {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
    if (problem_ ||
        std::isfinite(std::strtod(std::string(text_.substr(begin, at_ - begin)).c_str(), nullptr)))
      return;
    const std::string digits_found = printable(text_.substr(begin, at_ - begin), 24);
    at_ = begin;
    stop(fmt::format("expected a number below 1.8e308, found {}", digits_found), false);
  }

  void string() {
    const size_t begin = at_++;
    while (!problem_) {
      if (at_end()) {
        at_ = begin;
        return stop("a string starts here but does not end", true);
      }
      const char c = text_[at_];
      if (static_cast<int64_t>(at_) == invalid_utf8_)
        return stop(fmt::format("expected UTF-8, found byte 0x{:02x}", static_cast<unsigned char>(c)), false);
      if (c == '"') break;
      if (static_cast<unsigned char>(c) < ' ') {
        return stop(
            fmt::format("expected an escape such as \\n in a string, found the control character 0x{:02x}",
                        static_cast<int>(c)),
            false);
      }
      ++at_;
      if (c == '\\') escape();
    }
    if (!problem_) ++at_;
  }

  void escape() {
    if (at_end()) return;  // string() reports it
    const char c = text_[at_];
    if (std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos) {
      ++at_;
    } else if (c == 'u') {
      surrogates();
    } else {
      stop_here("one of \" \\ / b f n r t u after a backslash");
    }
  }

  // At the u of \uXXXX; a pair of them encodes a character above U+FFFF.
  void surrogates() {
    const int64_t first = code_unit();
    if (problem_ || first < 0 || first < 0xD800 || first > 0xDFFF) return;
    constexpr std::string_view kExpected = "the second half of a surrogate pair (\\uDC00 to \\uDFFF)";
    if (first >= 0xDC00) {
      at_ -= 5;
      return stop("expected the first half of a surrogate pair (\\uD800 to \\uDBFF), found the second",
                  false);
    }
    if (at_end() || text_.substr(at_) == "\\") return;
    if (!text_.substr(at_).starts_with("\\u")) return stop_here(kExpected);
    ++at_;
    const int64_t second = code_unit();
    if (problem_ || second < 0 || (second >= 0xDC00 && second <= 0xDFFF)) return;
    at_ -= 4;
    stop_here(kExpected);
  }

  // Consumes uXXXX; -1 at the end of the text.
  int64_t code_unit() {
    ++at_;
    const size_t begin = at_;
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_end()) return -1;
      if (!is_hex_digit(peek())) {
        stop_here("four hexadecimal digits after \\u");
        return -1;
      }
    }
    return std::strtol(std::string(text_.substr(begin, 4)).c_str(), nullptr, 16);
  }

  std::string_view text_;
  int64_t invalid_utf8_;
  size_t at_ = 0;
  Next next_ = Next::kValue;
  std::vector<bool> in_object_;  // one per open object or list
  std::optional<JsonProblem> problem_;
  bool is_done_ = false;
};

}  // namespace

std::string JsonProblem::text() const { return fmt::format("line {}, column {}: {}", line, column, what); }

std::optional<JsonProblem> find_json_problem(std::string_view text) { return Scanner(text).run(); }

JsonProblem json_problem(std::string_view text) {
  std::optional<JsonProblem> problem = find_json_problem(text);
  TESSERA_CHECK(problem, "a JSON parser refused a valid text of {} bytes", text.size());
  return std::move(*problem);
}

}  // namespace tessera
