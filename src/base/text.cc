#include "base/text.h"

#include <fmt/format.h>
#include <cstdint>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

namespace tessera {
namespace {

// Length of the well-formed UTF-8 sequence at the start of `text`, or 0 (Unicode 15, table 3-7).
int64_t utf8_sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&](size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const unsigned low = lead == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : 0xBF;
    return continues(1, low, high) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const unsigned low = lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xF4 ? 0x8F : 0xBF;
    return continues(1, low, high) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

bool is_plain_ascii(char c) { return c >= ' ' && c < 0x7F; }

// Whether a well-formed character controls a terminal, a line or its direction instead of showing something.
bool is_control(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return !is_plain_ascii(character[0]);
  if (character.size() == 2) return (byte(0) == 0xC2 && byte(1) < 0xA0) || character == "\u061c";
  return character == "\u200e" || character == "\u200f" ||
         (character.size() == 3 && ((character >= "\u2028" && character <= "\u202e") ||
                                    (character >= "\u2066" && character <= "\u2069")));
}

// U+0080 to U+FFFF.
unsigned code_point(std::string_view character) {
  const auto bits = [&](size_t i) { return static_cast<unsigned char>(character[i]) & 0x3Fu; };
  if (character.size() == 2) return (static_cast<unsigned char>(character[0]) & 0x1Fu) << 6 | bits(1);
  return (static_cast<unsigned char>(character[0]) & 0x0Fu) << 12 | bits(1) << 6 | bits(2);
}

// Moves the first character of *text to *out, escaped unless it shows something or is in `kept`.
void move_visible(std::string_view* text, std::string* out, std::string_view kept) {
  const auto length = static_cast<size_t>(utf8_sequence_length(*text));
  const std::string_view character = text->substr(0, std::max<size_t>(length, 1));
  const auto lead = static_cast<unsigned char>(character[0]);
  if (length == 0 || lead < ' ') {
    const bool is_kept = kept.find(character[0]) != kept.npos;
    *out += is_kept ? std::string(character) : fmt::format("\\x{:02x}", lead);
  } else if (is_control(character)) {
    *out += fmt::format("\\u{:04x}", length == 1 ? lead : code_point(character));
  } else {
    *out += character;
  }
  text->remove_prefix(character.size());
}

}  // namespace

std::string format_bytes(int64_t size_bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(size_bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", size_bytes);
  const double size = std::abs(value);
  return fmt::format("{:.{}f} {}", value, size < 10 ? 2 : size < 999.95 ? 1 : 0, kUnits[unit]);
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  constexpr double kLeastWithoutUnit = 1e6;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  std::string unit = lower_case(std::string(end, text.data() + text.size()));
  unit.erase(0, unit.find_first_not_of(' '));
  if (unit.empty() && value < kLeastWithoutUnit) return std::nullopt;
  int power = 0;
  if (!unit.empty() && unit != "b") {
    power = static_cast<int>(std::string_view("kmgt").find(unit[0])) + 1;
    const std::string_view rest = std::string_view(unit).substr(1);
    if (power == 0 || (!rest.empty() && rest != "b" && rest != "i" && rest != "ib")) return std::nullopt;
  }
  const double base = unit.ends_with("b") && !unit.ends_with("ib") ? 1000 : 1024;
  value = std::round(value * std::pow(base, power));
  if (!(value >= 1 && value < 0x1p62)) return std::nullopt;
  return static_cast<int64_t>(value);
}

std::string size_text(int64_t size_bytes) {
  constexpr std::pair<const char*, int64_t> kUnits[] = {
      {"TiB", int64_t{1} << 40}, {"TB", 1'000'000'000'000}, {"GiB", 1 << 30}, {"GB", 1'000'000'000},
      {"MiB", 1 << 20},          {"MB", 1'000'000},         {"KiB", 1 << 10}, {"KB", 1000}};
  for (const auto& [unit, bytes] : kUnits) {
    if (size_bytes % bytes == 0) return fmt::format("{}{}", size_bytes / bytes, unit);
  }
  return fmt::format("{}B", size_bytes);
}

std::string format_count(int64_t count) {
  std::string digits = std::to_string(count);
  const int64_t first = count < 0 ? 1 : 0;
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > first; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::string count_of(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string format_count(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

std::string lower_case(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "--:--";
  const auto total = static_cast<int64_t>(std::llround(seconds));
  if (total >= 3600) return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
  return fmt::format("{:02}:{:02}", total / 60, total % 60);
}

int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<int64_t> row(b.size() + 1), previous, before_previous;
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    before_previous = std::exchange(previous, row);
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t substitute = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, substitute});
      const bool is_swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swapped) row[j] = std::min(row[j], before_previous[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string shell_quoted(std::string_view text) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-+=:,./@%").find(c) != std::string_view::npos;
  };
  // zsh expands "=...".
  if (!text.empty() && text.front() != '=' && std::all_of(text.begin(), text.end(), is_plain)) {
    return std::string(text);
  }
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

bool is_valid_utf8(std::string_view text) { return find_invalid_utf8(text) < 0; }

int64_t find_invalid_utf8(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  size_t at = 0;
  while (at < text.size()) {
    // Checks eight ASCII bytes at a time.
    if (uint64_t word; text.size() - at >= sizeof(word)) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & kHighBits) == 0) {
        at += sizeof(word);
        continue;
      }
    }
    const int64_t length = utf8_sequence_length(text.substr(at));
    if (length == 0) return static_cast<int64_t>(at);
    at += static_cast<size_t>(length);
  }
  return -1;
}

std::string visible_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    // Most text is plain ASCII: that prefix is copied in one go.
    const auto end = std::find_if_not(text.begin(), text.end(), [](char c) { return is_plain_ascii(c); });
    out.append(text.begin(), end);
    text.remove_prefix(static_cast<size_t>(end - text.begin()));
    if (!text.empty()) move_visible(&text, &out, "\n\t");
  }
  return out;
}

std::string visible_line(std::string_view text) {
  return printable(text, std::numeric_limits<int64_t>::max());
}

std::string printable(std::string_view text, int64_t max_chars) {
  std::string out;
  int64_t chars = 0;
  while (!text.empty()) {
    if (chars++ >= max_chars) return out + "...";
    move_visible(&text, &out, "");
  }
  return out;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

namespace {

template <typename T>
std::optional<T> parse(std::string_view text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text) { return parse<int64_t>(text); }
std::optional<double> parse_number(std::string_view text) { return parse<double>(text); }

void append_utf8(char32_t code_point, std::string* out) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

int64_t count_characters(std::string_view utf8) {
  return std::ranges::count_if(utf8, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::string format_eta(const std::optional<double>& seconds) {
  constexpr double kHour = 3600, kDay = 24 * kHour;
  if (!seconds || !(*seconds < 10'000 * kDay)) return "--:--";
  if (*seconds < 100 * kHour) return format_duration(*seconds);
  const auto hours = static_cast<int64_t>(*seconds / kHour);
  return fmt::format("{}d {:02}h", hours / 24, hours % 24);
}

}  // namespace tessera
