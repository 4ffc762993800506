#include "base/json_value.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace tessera {

std::string found_text(const nlohmann::json& value) {
  constexpr int64_t kMaxStructureChars = 40;
  const std::string json = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (!value.is_structured()) return printable(json);
  if (value.empty()) return value.is_array() ? "an empty list" : "an empty object";
  const auto size = static_cast<int64_t>(value.size());
  return fmt::format("{}, {}",
                     value.is_array() ? fmt::format("a list of {}", format_count(size))
                                      : "an object with " + format_count(size, "field"),
                     printable(json, kMaxStructureChars));
}

}  // namespace tessera
