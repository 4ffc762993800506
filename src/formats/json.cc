#include "formats/json.h"

#include <algorithm>
#include <cmath>
#include <system_error>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/json_value.h"
#include "base/text.h"
#include "formats/file_kind.h"
#include "formats/json_problem.h"
#include "io/file.h"

namespace tessera {

void check_json_bytes(std::string_view text, const std::string& origin) {
  if (!is_valid_utf8(text)) fail(ExitCode::kBadData, "{}: not valid UTF-8", origin);
  if (const size_t at = text.find('\0'); at != std::string_view::npos)
    fail(ExitCode::kBadData, "{}: not valid JSON: NUL byte at {}", origin, at);
}

Json parse_json(std::string_view text, const std::string& origin, int max_depth) {
  constexpr int64_t kMaxValues =
      10'000'000;  // vocabularies have some 2 million; each value takes tens of bytes
  check_json_bytes(text, origin);
  int64_t num_values = 0;
  std::vector<std::unordered_set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if ((event == Event::value || event == Event::array_start || event == Event::object_start) &&
        ++num_values > kMaxValues)
      fail(ExitCode::kBadData, "{}: more than {} values", origin, kMaxValues);
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
    if (text.starts_with(kLfsPointerStart))
      fail(ExitCode::kBadData, "{}: expected JSON, found {}", origin, kLfsPointer);
    fail(ExitCode::kBadData, "{}: not valid JSON: {}", origin, json_problem(text).text());
  }
}

Json parse_json_file_if_any(const std::filesystem::path& path) {
  std::error_code unreadable;  // becomes an error that names the file when it is opened
  if (!std::filesystem::exists(path, unreadable) && !unreadable) return Json::object();
  return parse_json(read_text_file(path), path.string());
}

JsonNode JsonNode::operator[](std::string_view key) const {
  const std::string path = path_.empty() ? std::string(key) : path_ + "." + std::string(key);
  if (value_ == nullptr) return {nullptr, origin_, path};
  const Json& fields = object();
  const auto found = fields.find(key);
  return {found == fields.end() ? nullptr : &*found, origin_, path};
}

JsonNode JsonNode::operator[](size_t index) const {
  return {&value_->at(index), origin_, path_ + "[" + std::to_string(index) + "]"};
}

const std::string& JsonNode::string() const {
  if (!is_string()) expected("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
  if (value_ == nullptr || !value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

double JsonNode::number() const {
  if (value_ == nullptr || !value_->is_number()) expected("a number");
  return value_->get<double>();
}

double JsonNode::number_between(double low, double high) const {
  const double value = value_ != nullptr && value_->is_number() ? value_->get<double>() : NAN;
  if (!(value >= low && value <= high)) expected(fmt::format("a number from {:g} to {:g}", low, high));
  return value;
}

int64_t JsonNode::integer(int64_t low, int64_t high) const {
  const bool fits = value_ != nullptr && value_->is_number_integer() &&
                    !(value_->is_number_unsigned() && value_->get<uint64_t>() > uint64_t{INT64_MAX}) &&
                    value_->get<int64_t>() >= low && value_->get<int64_t>() <= high;
  if (!fits) {
    expected(low == INT64_MIN    ? "an integer"
             : high == INT64_MAX ? fmt::format("an integer of at least {}", low)
                                 : fmt::format("an integer from {} to {}", low, high));
  }
  return value_->get<int64_t>();
}

std::vector<JsonNode> JsonNode::list() const {
  if (!is_list()) expected("a list");
  std::vector<JsonNode> nodes;
  for (size_t i = 0; i < value_->size(); ++i) nodes.push_back((*this)[i]);
  return nodes;
}

const Json& JsonNode::object() const {
  if (!is_object()) expected("an object");
  return *value_;
}

std::string JsonNode::one_char() const {
  const std::string& text = string();
  const auto begins_character = [](char byte) { return (byte & 0xC0) != 0x80; };
  if (std::count_if(text.begin(), text.end(), begins_character) != 1) expected("one character");
  return text;
}

const Json& JsonNode::json() const {
  static const Json null;
  return value_ == nullptr ? null : *value_;
}

void JsonNode::expect_keys(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, value] : object().items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    if (value.is_null() || value == false) continue;
    fail(ExitCode::kBadConfig, "{}: the setting \"{}\" = {} is not supported", where(), printable(key),
         printable(value.dump()));
  }
}

void JsonNode::expected(std::string_view what) const {
  fail(ExitCode::kBadData, "{}{}: expected {}, found {}", *origin_,
       path_.empty() ? "" : fmt::format(": field '{}'", printable(path_)), what,
       value_ == nullptr ? "nothing" : found_text(*value_));
}

void JsonNode::not_supported(std::string_view kind, const std::string& name) const {
  fail(ExitCode::kBadConfig, "{}: the {} \"{}\" is not supported", where(), kind, printable(name));
}

}  // namespace tessera
