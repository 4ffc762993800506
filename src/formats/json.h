// Parses JSON from files that may be wrong or hostile: every error is one line naming the file and the place.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

using Json = nlohmann::json;

// Parses one JSON document. Rejected (kBadData, naming `origin`): malformed UTF-8, NUL bytes, syntax errors,
// anything after the document, numbers out of range, duplicate keys in an object, nesting beyond max_depth.
Json parse_json(std::string_view text, const std::string& origin, int max_depth = 64);

// Rejects bytes that are never valid in JSON: malformed UTF-8, and NUL, which nlohmann::json takes for the
// end of the text.
void check_json_bytes(std::string_view text, const std::string& origin);

// Typed access to the fields of an object. A field that is null counts as absent, as in Hugging Face's files;
// a field of the wrong type is kBadData with origin, field, expected and found.
class JsonFields {
 public:
  // `object` must outlive this. `prefix` precedes field names in messages ("rope_scaling.").
  JsonFields(const Json& object, std::string origin, std::string prefix = "");

  bool has(const std::string& name) const { return find(name) != nullptr; }
  const Json* find(const std::string& name) const;  // nullptr if absent or null
  std::optional<int64_t> integer(const std::string& name) const;
  std::optional<double> number(const std::string& name) const;
  std::optional<bool> boolean(const std::string& name) const;
  std::optional<std::string> string(const std::string& name) const;

  const Json& object() const { return object_; }
  const std::string& origin() const { return origin_; }
  std::string field(const std::string& name) const { return prefix_ + name; }
  // "config.json: field 'x': expected <expected>, found <found_text(value)>"
  [[noreturn]] void fail_expected(const std::string& name, std::string_view expected) const;

 private:
  const Json& object_;
  std::string origin_;
  std::string prefix_;
};

}  // namespace tessera
