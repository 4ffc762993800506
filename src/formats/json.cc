#include "formats/json.h"

#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_value.h"
#include "base/text.h"
#include "formats/json_problem.h"

namespace tessera {

void check_json_bytes(std::string_view text, const std::string& origin) {
  if (!is_valid_utf8(text)) fail(ExitCode::kBadData, "{}: not valid UTF-8", origin);
  if (const size_t at = text.find('\0'); at != std::string_view::npos)
    fail(ExitCode::kBadData, "{}: not valid JSON: NUL byte at {}", origin, at);
}

Json parse_json(std::string_view text, const std::string& origin, int max_depth) {
  check_json_bytes(text, origin);
  std::vector<std::unordered_set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= max_depth)
      fail(ExitCode::kBadData, "{}: nested too deep: expected at most {} levels", origin, max_depth);
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get_ref<const std::string&>()).second)
      fail(ExitCode::kBadData, "{}: key '{}' appears twice in one object", origin,
           printable(parsed.get_ref<const std::string&>()));
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception&) {
    fail(ExitCode::kBadData, "{}: not valid JSON: {}", origin, json_problem(text).text());
  }
}

JsonFields::JsonFields(const Json& object, std::string origin, std::string prefix)
    : object_(object), origin_(std::move(origin)), prefix_(std::move(prefix)) {
  TESSERA_CHECK(object_.is_object(), "{}", origin_);
}

const Json* JsonFields::find(const std::string& name) const {
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void JsonFields::fail_expected(const std::string& name, std::string_view expected) const {
  const Json* value = find(name);
  fail(ExitCode::kBadData, "{}: field '{}': expected {}, found {}", origin_, printable(field(name)), expected,
       value == nullptr ? "nothing" : found_text(*value));
}

std::optional<int64_t> JsonFields::integer(const std::string& name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const bool too_large =
      value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  if (!value->is_number_integer() || too_large) fail_expected(name, "an integer");
  return value->get<int64_t>();
}

std::optional<double> JsonFields::number(const std::string& name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) fail_expected(name, "a number");
  return value->get<double>();
}

std::optional<bool> JsonFields::boolean(const std::string& name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail_expected(name, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonFields::string(const std::string& name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail_expected(name, "a string");
  return value->get<std::string>();
}

}  // namespace tessera
