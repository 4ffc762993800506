#include "tokenizer/json_node.h"

#include <algorithm>

#include "base/json_value.h"
#include "base/text.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {

JsonNode JsonNode::operator[](std::string_view key) const {
  const std::string path = path_.empty() ? std::string(key) : path_ + "." + std::string(key);
  if (value_ != nullptr && !value_->is_object()) expected("an object");
  if (value_ == nullptr) return {nullptr, origin_, path};
  const auto found = value_->find(key);
  return {found == value_->end() ? nullptr : &*found, origin_, path};
}

JsonNode JsonNode::operator[](size_t index) const {
  return {&value_->at(index), origin_, path_ + "[" + std::to_string(index) + "]"};
}

std::string JsonNode::where() const { return path_.empty() ? *origin_ : *origin_ + ": " + path_; }

void JsonNode::expected(std::string_view what) const {
  fail(ExitCode::kBadData, "{}: expected {}, found {}", where(), what,
       value_ == nullptr ? "nothing" : found_text(*value_));
}

void JsonNode::not_supported(std::string_view kind, const std::string& name) const {
  fail(ExitCode::kBadConfig, "{}: the {} \"{}\" is not supported", where(), kind, printable(name));
}

const std::string& JsonNode::string() const {
  if (!is_string()) expected("a string");
  return value_->get_ref<const std::string&>();
}

std::string JsonNode::string_or(std::string_view fallback) const {
  return is_null() ? std::string(fallback) : string();
}

bool JsonNode::boolean() const {
  if (value_ == nullptr || !value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

int64_t JsonNode::integer(int64_t low, int64_t high) const {
  const bool fits = value_ != nullptr && value_->is_number_integer() &&
                    !(value_->is_number_unsigned() && value_->get<uint64_t>() > uint64_t{INT64_MAX}) &&
                    value_->get<int64_t>() >= low && value_->get<int64_t>() <= high;
  if (!fits) expected(fmt::format("an integer from {} to {}", low, high));
  return value_->get<int64_t>();
}

std::vector<JsonNode> JsonNode::list() const {
  if (value_ == nullptr || !value_->is_array()) expected("a list");
  std::vector<JsonNode> nodes;
  for (size_t i = 0; i < value_->size(); ++i) nodes.push_back((*this)[i]);
  return nodes;
}

std::vector<std::string> JsonNode::keys() const {
  if (!is_object()) expected("an object");
  std::vector<std::string> names;
  for (const auto& item : value_->items()) names.push_back(item.key());
  return names;
}

std::string JsonNode::one_char() const {
  const std::string& text = string();
  if (text.empty() || utf8_size(text[0]) != static_cast<int64_t>(text.size())) expected("one character");
  return text;
}

TextPattern JsonNode::pattern() const {
  if (is_string()) return string();  // as versions before 0.10 wrote it
  const JsonNode regex = (*this)["Regex"];
  const JsonNode literal = (*this)["String"];
  if (regex.is_null() == literal.is_null()) expected("an object with either \"Regex\" or \"String\"");
  if (!regex.is_null()) return Regex(regex.string(), regex.where());
  return literal.string();
}

void JsonNode::expect_keys(std::initializer_list<std::string_view> known) const {
  for (const std::string& key : keys()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const nlohmann::json& value = value_->at(key);
    if (value.is_null() || value == false) continue;
    fail(ExitCode::kBadConfig, "{}: the setting \"{}\" = {} is not supported", where(), printable(key),
         printable(value.dump()));
  }
}

}  // namespace tessera
