#include "settings/yaml_scalars.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "base/text.h"

namespace tessera {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t'; }
bool is_break(char c) { return c == '\n' || c == '\r'; }

// Reads a text in quotes, which yaml-cpp has found well formed.
class QuotedText {
 public:
  explicit QuotedText(std::string_view text) : text_(text), quote_(text[0]) {}

  std::string read() {
    at_ = 1;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == quote_) {
        if (quote_ == '"' || peek(1) != '\'') break;
        out_ += '\'';
        ++at_;
      } else if (c == '\\' && quote_ == '"') {
        read_escape();
      } else if (is_blank(c) || is_break(c)) {
        read_space();
      } else {
        out_ += c;
      }
    }
    return std::move(out_);
  }

 private:
  char peek(size_t ahead) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  // From the space at at_ to its last byte. One line break is a space, of several the first is none.
  void read_space() {
    const size_t begin = at_;
    while (is_blank(peek(0))) ++at_;
    if (!is_break(peek(0))) {
      out_ += text_.substr(begin, at_ - begin);
      --at_;
      return;
    }
    const size_t size = out_.size();
    read_breaks();
    if (out_.size() == size) out_ += ' ';
  }

  // Reads a line break, which is dropped, and the empty lines after it, which are kept.
  void read_breaks() {
    for (;;) {
      if (text_[at_] == '\r' && peek(1) == '\n') ++at_;
      size_t next = at_ + 1;
      while (next < text_.size() && is_blank(text_[next])) ++next;
      at_ = next - 1;
      if (next == text_.size() || !is_break(text_[next])) return;
      out_ += '\n';
      at_ = next;
    }
  }

  void read_escape() {
    static constexpr std::string_view kNames = "0abt\tnvfre \"/\\";
    static constexpr std::string_view kValues{"\0\a\b\t\t\n\v\f\r\x1b \"/\\", 14};
    const char name = text_[++at_];
    if (is_break(name)) return read_breaks();
    if (const size_t known = kNames.find(name); known != std::string_view::npos) {
      out_ += kValues[known];
      return;
    }
    switch (name) {
      case 'N':
        return append_utf8(0x85, &out_);
      case '_':
        return append_utf8(0xA0, &out_);
      case 'L':
        return append_utf8(0x2028, &out_);
      case 'P':
        return append_utf8(0x2029, &out_);
      default:
        break;
    }
    const size_t num_digits = name == 'x' ? 2 : name == 'u' ? 4 : 8;
    const std::string_view digits = text_.substr(at_ + 1, num_digits);
    uint32_t code = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    append_utf8(code, &out_);
    at_ += digits.size();
  }

  std::string_view text_;
  char quote_;
  size_t at_ = 0;
  std::string out_;
};

// Skips tags and anchors, which yaml-cpp counts as the start of a value.
std::string_view without_properties(std::string_view text) {
  while (!text.empty() && (text[0] == '&' || text[0] == '!')) {
    const auto* end =
        std::find_if(text.begin(), text.end(), [](char c) { return is_blank(c) || is_break(c); });
    end = std::find_if_not(end, text.end(), [](char c) { return is_blank(c) || is_break(c); });
    text.remove_prefix(static_cast<size_t>(end - text.begin()));
  }
  return text;
}

// The number of line breaks that end the block whose header `text` begins with; >+ keeps all of them.
int64_t count_last_breaks(std::string_view text, bool has_content) {
  const std::string_view header = text.substr(0, text.find('\n'));
  const size_t digit = header.find_first_of("123456789");
  size_t indent = digit < header.find('#') ? static_cast<size_t>(header[digit] - '0') : 0;
  text.remove_prefix(std::min(header.size() + 1, text.size()));
  int64_t count = 0;
  while (!text.empty()) {
    const size_t size = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, size);
    const int64_t has_break = size < text.size() ? 1 : 0;
    text.remove_prefix(size + static_cast<size_t>(has_break));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const size_t spaces = std::min(line.find_first_not_of(' '), line.size());
    const bool is_empty = spaces == line.size() && (indent == 0 || spaces <= indent);
    if (is_empty) {
      count += has_break;
      continue;
    }
    if (!has_content || (indent > 0 && spaces < indent)) break;
    if (indent == 0) indent = spaces;
    count = has_break;
  }
  return count;
}

}  // namespace

std::string yaml_scalar(const YAML::Node& node, std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  std::string value = node.Scalar();
  const int at = node.Mark().pos;
  if (at < 0 || static_cast<size_t>(at) >= text.size()) return value;
  const std::string_view source = without_properties(text.substr(static_cast<size_t>(at)));
  if (source.empty()) return value;
  if (source[0] == '"' || source[0] == '\'') return QuotedText(source).read();
  const std::string_view header = source.substr(0, source.find_first_of(" \t\r\n"));
  if (source[0] != '>' || header.find('+') == std::string_view::npos) return value;
  value.erase(value.find_last_not_of('\n') + 1);
  value.append(static_cast<size_t>(count_last_breaks(source, !value.empty())), '\n');
  return value;
}

}  // namespace tessera
