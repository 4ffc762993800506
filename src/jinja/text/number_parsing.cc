#include "jinja/text/number_parsing.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <string>

#include "base/text.h"
#include "jinja/text/unicode_text.h"

namespace tessera::jinja {
namespace {

// Without underscores, each of which must stand between two digits; empty if one does not.
std::string without_underscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](size_t at) {
      return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0;
    };
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) {
      return "";
    }
  }
  return out;
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text, bool& overflow) {
  std::string digits = without_underscores(strip(text, Side::kBoth));
  if (digits.starts_with("+") && !digits.starts_with("+-")) digits.erase(0, 1);
  if (digits.empty()) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size()) return std::nullopt;
  overflow = error == std::errc::result_out_of_range;
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  std::string digits = lower_case(without_underscores(strip(text, Side::kBoth)));
  const size_t sign = !digits.empty() && (digits[0] == '-' || digits[0] == '+') ? 1 : 0;
  const std::string_view magnitude = std::string_view(digits).substr(sign);
  if (magnitude.empty() || magnitude[0] == '-' || magnitude[0] == '+') return std::nullopt;
  double value = 0;
  const double direction = sign == 1 && digits[0] == '-' ? -1 : 1;
  if (magnitude == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (magnitude == "inf" || magnitude == "infinity")
    return direction * std::numeric_limits<double>::infinity();
  if (std::isdigit(static_cast<unsigned char>(magnitude[0])) == 0 && magnitude[0] != '.') return std::nullopt;
  const auto [end, error] = std::from_chars(magnitude.data(), magnitude.data() + magnitude.size(), value);
  if (end != magnitude.data() + magnitude.size() || error == std::errc::invalid_argument) return std::nullopt;
  // Too large or too small for a double: strtod gives infinity or zero, as Python does.
  if (error == std::errc::result_out_of_range) value = std::strtod(std::string(magnitude).c_str(), nullptr);
  return direction * value;
}

}  // namespace tessera::jinja
