#include "base/text_fields.h"

#include <charconv>

namespace tessera {

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

}  // namespace tessera
