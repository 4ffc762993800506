// Access to a JSON document, with errors that name the file and the path of the field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tokenizer/regex/regex.h"

namespace tessera {

// A value inside a document, with its path ("pre_tokenizer.pretokenizers[0].pattern"). A missing field is a
// node too; reading its value is the error. Errors are kBadData unless noted.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& root, const std::string& origin) : value_(&root), origin_(&origin) {}

  // Field of an object (null and missing are the same) or element of a list.
  JsonNode operator[](std::string_view key) const;
  JsonNode operator[](size_t index) const;

  bool is_null() const { return value_ == nullptr || value_->is_null(); }
  bool is_object() const { return value_ != nullptr && value_->is_object(); }
  bool is_string() const { return value_ != nullptr && value_->is_string(); }
  const std::string& string() const;
  std::string string_or(std::string_view fallback) const;
  bool boolean() const;
  bool boolean_or(bool fallback) const { return is_null() ? fallback : boolean(); }
  int64_t integer(int64_t low, int64_t high) const;
  std::vector<JsonNode> list() const;
  std::vector<std::string> keys() const;

  // The only character of a string.
  std::string one_char() const;
  // {"Regex": ...} or {"String": ...}
  TextPattern pattern() const;

  // The "type" of a component.
  const std::string& type() const { return (*this)["type"].string(); }
  // kBadConfig if the component has a field that is not in `known` and not null or false: a setting we do not
  // know may change ids.
  void expect_keys(std::initializer_list<std::string_view> known) const;

  // "tokenizer.json: pre_tokenizer.type"
  std::string where() const;
  [[noreturn]] void expected(std::string_view what) const;
  [[noreturn]] void not_supported(std::string_view kind, const std::string& name) const;

 private:
  JsonNode(const nlohmann::json* value, const std::string* origin, std::string path)
      : value_(value), origin_(origin), path_(std::move(path)) {}

  const nlohmann::json* value_;
  const std::string* origin_;
  std::string path_;
};

}  // namespace tessera
