#include "formats/hjson.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "formats/byte_order_mark.h"
#include "formats/json_problem.h"

namespace tessera {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

class HjsonParser {
 public:
  HjsonParser(std::string_view text, const std::string& origin, int max_depth)
      : text_(text), origin_(origin), max_depth_(max_depth) {}

  Json parse() {
    if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
    skip_blank();
    if (at_end()) fail_here("expected a configuration, found nothing");
    if (peek() == '[') fail_here("expected an object, found a list");
    const bool has_braces = peek() == '{';
    if (has_braces) ++at_;
    Json whole = parse_members(has_braces, 1);
    skip_blank();
    if (!at_end()) fail_here(fmt::format("expected the end of the file, found {}", what_follows()));
    return whole;
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return text_[at_]; }
  bool follows(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool at_comment() const { return follows("#") || follows("//") || follows("/*"); }

  std::string what_follows() const {
    if (at_end()) return "the end of the file";
    const std::string_view rest = text_.substr(at_);
    return fmt::format("'{}'", printable(rest.substr(0, std::min(rest.find('\n'), rest.size())), 24));
  }

  [[noreturn]] void fail_here(const std::string& message) const {
    const auto end = text_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, text_.size()));
    fail(ExitCode::kBadConfig, "{}:{}: {}", origin_, 1 + std::count(text_.begin(), end, '\n'), message);
  }

  // Skips whitespace and comments.
  void skip_blank() {
    while (!at_end()) {
      if (is_space(peek())) {
        ++at_;
      } else if (follows("/*")) {
        const size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) fail_here("a comment that starts with /* does not end");
        at_ = end + 2;
      } else if (at_comment()) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else {
        return;
      }
    }
  }

  // Skips whitespace, comments and one comma between two members or elements.
  void skip_separator() {
    skip_blank();
    if (at_end() || peek() != ',') return;
    ++at_;
    skip_blank();
  }

  Json parse_members(bool has_braces, int depth) {
    if (depth > max_depth_) fail_here(fmt::format("nested too deep: expected at most {} levels", max_depth_));
    Json object = Json::object();
    skip_blank();
    while (true) {
      if (at_end()) {
        if (has_braces) fail_here("expected '}', found the end of the file");
        return object;
      }
      if (has_braces && peek() == '}') {
        ++at_;
        return object;
      }
      const std::string key = parse_key();
      if (object.contains(key))
        fail_here(fmt::format("key '{}' appears twice in one object", printable(key)));
      skip_blank();
      if (at_end() || peek() != ':')
        fail_here(fmt::format("expected ':' after key '{}', found {}", printable(key), what_follows()));
      ++at_;
      object[key] = parse_value(depth);
      skip_separator();
    }
  }

  Json parse_list(int depth) {
    if (depth > max_depth_) fail_here(fmt::format("nested too deep: expected at most {} levels", max_depth_));
    Json list = Json::array();
    skip_blank();
    while (true) {
      if (at_end()) fail_here("expected ']', found the end of the file");
      if (peek() == ']') {
        ++at_;
        return list;
      }
      list.push_back(parse_value(depth));
      skip_separator();
    }
  }

  std::string parse_key() {
    if (peek() == '"' || peek() == '\'') return parse_quoted();
    const size_t begin = at_;
    while (!at_end() && !is_space(peek()) &&
           std::string_view(",:[]{}").find(peek()) == std::string_view::npos)
      ++at_;
    if (at_ == begin) fail_here(fmt::format("expected a key, found {}", what_follows()));
    return std::string(text_.substr(begin, at_ - begin));
  }

  Json parse_value(int depth) {
    skip_blank();
    if (at_end()) fail_here("expected a value, found the end of the file");
    switch (peek()) {
      case '{':
        ++at_;
        return parse_members(/*has_braces=*/true, depth + 1);
      case '[':
        ++at_;
        return parse_list(depth + 1);
      case '"':
      case '\'':
        return parse_quoted();
      case '}':
      case ']':
      case ',':
      case ':':
        fail_here(fmt::format("expected a value, found {}", what_follows()));
      default:
        return parse_unquoted();
    }
  }

  std::string parse_quoted() {
    if (follows("'''")) fail_here("multi-line strings (''') are not supported: write the string on one line");
    const char quote = peek();
    // The string as JSON, which has the same escapes except \'.
    std::string as_json = "\"";
    const size_t begin = at_++;
    while (!at_end() && peek() != quote && peek() != '\n') {
      if (follows("\\'")) {
        as_json += '\'';
        at_ += 2;
      } else if (peek() == '\\' && at_ + 1 < text_.size()) {
        as_json += text_.substr(at_, 2);
        at_ += 2;
      } else {
        if (peek() == '"') as_json += '\\';
        as_json += text_[at_++];
      }
    }
    if (at_end() || peek() != quote) {
      at_ = begin;
      fail_here(fmt::format("a string does not end on its line: {}", what_follows()));
    }
    ++at_;
    try {
      return Json::parse(as_json + '"').get<std::string>();
    } catch (const Json::exception&) {
      at_ = begin;
      fail_here(fmt::format("not a valid string: {}", json_problem(as_json + '"').what));
    }
  }

  Json parse_unquoted() {
    const size_t begin = at_;
    while (true) {
      const bool ends_line = at_end() || peek() == '\n';
      if (ends_line || peek() == ',' || peek() == '}' || peek() == ']' || at_comment()) {
        if (const Json literal = literal_of(trimmed(text_.substr(begin, at_ - begin)));
            !literal.is_discarded())
          return literal;
      }
      if (ends_line) return std::string(trimmed(text_.substr(begin, at_ - begin)));
      ++at_;
    }
  }

  // A number, true, false or null; discarded if the word is none of these.
  Json literal_of(std::string_view word) const {
    if (word == "true") return true;
    if (word == "false") return false;
    if (word == "null") return nullptr;
    const bool looks_like_number = !word.empty() && (word[0] == '-' || (word[0] >= '0' && word[0] <= '9'));
    if (!looks_like_number) return Json(Json::value_t::discarded);
    try {
      return Json::parse(word);
    } catch (const Json::out_of_range&) {
      fail_here(fmt::format("number out of range: {}", printable(word)));
    } catch (const Json::exception&) {
      return Json(Json::value_t::discarded);
    }
  }

  std::string_view text_;
  const std::string& origin_;
  int max_depth_;
  size_t at_ = 0;
};

}  // namespace

Json parse_hjson(std::string_view text, const std::string& origin, int max_depth) {
  if (!is_valid_utf8(text)) fail(ExitCode::kBadConfig, "{}: not valid UTF-8", origin);
  if (const size_t at = text.find('\0'); at != std::string_view::npos)
    fail(ExitCode::kBadConfig, "{}: NUL byte at {}", origin, at);
  return HjsonParser(text, origin, max_depth).parse();
}

}  // namespace tessera
