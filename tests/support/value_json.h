// For tests: values as JSON, to compare rows with what other programs wrote, and JSON as values.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/value.h"

namespace tessera {

inline nlohmann::ordered_json to_json(const Value& value) {
  using OrderedJson = nlohmann::ordered_json;
  if (const bool* boolean = value.boolean()) return *boolean;
  if (const int64_t* integer = value.integer()) return *integer;
  if (const double* number = value.number()) return *number;
  if (const std::string* text = value.string()) return *text;
  if (const Value::List* list = value.list()) {
    OrderedJson array = OrderedJson::array();
    for (const Value& element : *list) array.push_back(to_json(element));
    return array;
  }
  if (const Value::Object* fields = value.object()) {
    OrderedJson object = OrderedJson::object();
    for (const Value::Field& field : *fields) object[field.name] = to_json(field.value);
    return object;
  }
  return nullptr;
}

inline Value to_value(const nlohmann::ordered_json& json) {
  if (json.is_null()) return nullptr;
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    Value::List list;
    for (const auto& item : json) list.push_back(to_value(item));
    return list;
  }
  Value::Object object;
  for (const auto& [name, item] : json.items()) object.push_back({name, to_value(item)});
  return object;
}

}  // namespace tessera
