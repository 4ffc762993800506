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

// Strips underscores, each of which must stand between two digits; returns "" if one does not.
std::string without_underscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](size_t at) {
      return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at])) != 0;
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

std::optional<int64_t> parse_integer(std::string_view text, int base, bool& overflow) {
  text = strip(text, Side::kBoth);
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  if (text.size() > 2 && text[0] == '0') {
    const char letter = static_cast<char>(std::tolower(static_cast<unsigned char>(text[1])));
    const int own_base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (own_base != 0 && (base == own_base || base == 0)) {
      base = own_base;
      text.remove_prefix(text[2] == '_' ? 3 : 2);
    }
  }
  const std::string digits = without_underscores(text);
  if (base == 0) {
    base = 10;
    if (digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of('0') != std::string::npos)
      return std::nullopt;
  }
  if (digits.empty() || base < 2 || base > 36) return std::nullopt;
  uint64_t magnitude = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, base);
  if (end != digits.data() + digits.size()) return std::nullopt;
  const uint64_t largest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) + (negative ? 1 : 0);
  overflow = error == std::errc::result_out_of_range || magnitude > largest;
  return negative ? static_cast<int64_t>(~magnitude + 1) : static_cast<int64_t>(magnitude);
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
