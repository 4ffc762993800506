#include "cluster/manifests/quantity.h"

#include <charconv>
#include <cmath>
#include <string_view>

#include "base/text.h"

namespace tessera {
namespace {

std::string in_largest_unit(int64_t amount, int64_t step, std::string_view letters, const char* end) {
  size_t power = 0;
  for (; amount != 0 && amount % step == 0 && power < letters.size(); ++power) amount /= step;
  return power == 0 ? std::to_string(amount) : fmt::format("{}{}{}", amount, letters[power - 1], end);
}

// 1024 for "Ki", 1e-3 for "m", 1 for ""; 0 for what is no suffix.
double factor_of(std::string_view suffix) {
  const bool is_binary = suffix.ends_with('i');
  const auto power = [&](std::string_view letters, double base) {
    const size_t at = letters.find(suffix.substr(0, suffix.size() - is_binary));
    return at == std::string_view::npos ? 0 : std::pow(base, static_cast<double>(at + 1));
  };
  if (suffix.empty()) return 1;
  if (suffix.size() > 1U + is_binary || suffix == "i") return 0;
  return is_binary ? power("KMGTPE", 1024) : power("kMGTPE", 1000) + power("munp", 1e-3);
}

}  // namespace

std::string count_quantity(int64_t count) { return in_largest_unit(count, 1000, "kMGTPE", ""); }
std::string bytes_quantity(int64_t bytes) { return in_largest_unit(bytes, 1024, "KMGTPE", "i"); }

std::optional<double> quantity(const Value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->integer() != nullptr) return static_cast<double>(*value->integer());
  if (value->number() != nullptr) return *value->number();
  if (value->string() == nullptr) return std::nullopt;
  const std::string& text = *value->string();
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  const std::string_view rest(end, static_cast<size_t>(text.data() + text.size() - end));
  const double factor = factor_of(rest);
  return factor == 0 ? std::nullopt : std::optional(number * factor);
}

}  // namespace tessera
