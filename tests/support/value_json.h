// For tests: values as JSON, to compare rows with what other programs wrote.
#pragma once

#include <nlohmann/json.hpp>

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

}  // namespace tessera
