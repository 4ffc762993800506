// Parses JSON from files that may be wrong or hostile: every error is one line naming the file and the place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

using Json = nlohmann::json;

// Parses one JSON document. Rejected (kBadData, naming `origin`): malformed UTF-8, NUL bytes, syntax errors,
// anything after the document, numbers out of range, duplicate keys in an object, nesting beyond max_depth.
Json parse_json(std::string_view text, const std::string& origin, int max_depth = 64);

// The document in a file, an empty object if there is no such file. Errors of read_text_file() and
// parse_json().
Json parse_json_file_if_any(const std::filesystem::path& path);

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// Rejects bytes that are never valid in JSON: malformed UTF-8, and NUL, which nlohmann::json takes for the
// end of the text.
void check_json_bytes(std::string_view text, const std::string& origin);

// A value inside a document, with its path ("pre_tokenizer.pretokenizers[0].pattern"). A missing field is a
// node too, and null counts as missing, as in Hugging Face's files. Reading a value that is missing or has
// another type is kBadData with file, path, expected and found.
class JsonNode {
 public:
  // Both outlive the nodes. `path` is the document's place inside a larger one ("run").
  JsonNode(const Json& document, const std::string& origin, std::string path = "")
      : JsonNode(&document, &origin, std::move(path)) {}
  JsonNode(const Json&, std::string&&, std::string = "") = delete;

  JsonNode operator[](std::string_view key) const;
  JsonNode operator[](size_t index) const;
  bool contains(std::string_view key) const { return is_object() && value_->contains(key); }  // null or not

  bool is_null() const { return value_ == nullptr || value_->is_null(); }
  bool is_object() const { return value_ != nullptr && value_->is_object(); }
  bool is_list() const { return value_ != nullptr && value_->is_array(); }
  bool is_string() const { return value_ != nullptr && value_->is_string(); }

  const std::string& string() const;
  bool boolean() const;
  double number() const;
  double number_between(double low, double high) const;
  int64_t integer(int64_t low = INT64_MIN, int64_t high = INT64_MAX) const;
  std::vector<JsonNode> list() const;
  const Json& object() const;
  std::string one_char() const;  // the only character of a string
  std::string string_or(std::string_view fallback) const {
    return is_null() ? std::string(fallback) : string();
  }
  bool boolean_or(bool fallback) const { return is_null() ? fallback : boolean(); }
  double number_or(double fallback) const { return is_null() ? fallback : number(); }
  int64_t integer_or(int64_t fallback) const { return is_null() ? fallback : integer(); }
  const Json& json() const;  // null if missing

  // The "type" of a component.
  const std::string& type() const { return (*this)["type"].string(); }
  // kBadConfig if the component has a field that is not in `known` and not null or false: a setting we do not
  // know may change results.
  void expect_keys(std::initializer_list<std::string_view> known) const;

  const std::string& origin() const { return *origin_; }
  const std::string& path() const { return path_; }
  // "tokenizer.json: pre_tokenizer.type"
  std::string where() const { return path_.empty() ? *origin_ : *origin_ + ": " + path_; }
  // "config.json: field 'x': expected <what>, found <found_text(value)>"
  [[noreturn]] void expected(std::string_view what) const;
  // kBadConfig: "tokenizer.json: normalizer: the normalizer "x" is not supported"
  [[noreturn]] void not_supported(std::string_view kind, const std::string& name) const;

 private:
  JsonNode(const Json* value, const std::string* origin, std::string path)
      : value_(value), origin_(origin), path_(std::move(path)) {}

  const Json* value_;
  const std::string* origin_;
  std::string path_;
};

}  // namespace tessera
