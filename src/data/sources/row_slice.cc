#include "data/sources/row_slice.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace tessera {
namespace {

// An end of a slice, "" for none. False if it is no number.
bool parse_end(std::string_view text, std::optional<int64_t>* number, bool* is_percent) {
  if (text.ends_with('%')) {
    *is_percent = true;
    text.remove_suffix(1);
    if (text.empty()) return false;
  }
  if (text.empty()) return true;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  *number = value;
  return true;
}

}  // namespace

std::pair<int64_t, int64_t> RowSlice::resolve(int64_t num_rows) const {
  const auto place = [&](std::optional<int64_t> end, int64_t otherwise) {
    if (!end) return otherwise;
    int64_t at = *end;
    // std::nearbyint rounds halves to even, as Python's round() does.
    if (is_percent)
      at = static_cast<int64_t>(
          std::nearbyint(static_cast<double>(*end) * static_cast<double>(num_rows) / 100.0));
    if (at < 0) at = std::max<int64_t>(num_rows + at, 0);
    return std::min(at, num_rows);
  };
  const int64_t begin = place(from, 0);
  return {begin, std::max(begin, place(to, num_rows))};
}

std::optional<RowSlice> parse_row_slice(std::string_view text) {
  const size_t colon = text.find(':');
  if (!text.starts_with('[') || !text.ends_with(']') || colon == std::string_view::npos) return std::nullopt;
  RowSlice slice;
  if (!parse_end(text.substr(1, colon - 1), &slice.from, &slice.is_percent) ||
      !parse_end(text.substr(colon + 1, text.size() - colon - 2), &slice.to, &slice.is_percent)) {
    return std::nullopt;
  }
  const auto is_share = [](std::optional<int64_t> end) { return std::abs(end.value_or(0)) <= 100; };
  if (slice.is_percent && !(is_share(slice.from) && is_share(slice.to))) return std::nullopt;
  return slice;
}

}  // namespace tessera
