#include "base/value.h"

#include <algorithm>
#include <array>

namespace tessera {

Value::Value(List value) : data_(std::move(value)) {}
Value::Value(Object value) : data_(std::move(value)) {}

const Value* Value::find(std::string_view name) const {
  const Object* fields = object();
  if (fields == nullptr) return nullptr;
  const auto at =
      std::find_if(fields->begin(), fields->end(), [name](const Field& field) { return field.name == name; });
  return at == fields->end() ? nullptr : &at->value;
}

Value* Value::find(std::string_view name) { return const_cast<Value*>(std::as_const(*this).find(name)); }

const std::string* Value::find_string(std::string_view name) const {
  const Value* field = find(name);
  return field == nullptr ? nullptr : field->string();
}

std::string* Value::find_string(std::string_view name) {
  return const_cast<std::string*>(std::as_const(*this).find_string(name));
}

const Value::List* Value::find_list(std::string_view name) const {
  const Value* field = find(name);
  return field == nullptr ? nullptr : field->list();
}

Value::List* Value::find_list(std::string_view name) {
  return const_cast<List*>(std::as_const(*this).find_list(name));
}

const char* Value::kind_name() const {
  static constexpr std::array kNames = {"null",     "a boolean", "an integer", "a number",
                                        "a string", "a list",    "an object"};
  static_assert(kNames.size() == std::variant_size_v<decltype(data_)>);
  return kNames[data_.index()];
}

bool Value::operator==(const Value& other) const { return data_ == other.data_; }

}  // namespace tessera
