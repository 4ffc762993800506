// A value as JSON has it: what a field of a dataset's row holds, and what templates are rendered from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera {

class Value {
 public:
  struct Field;
  using List = std::vector<Value>;
  using Object = std::vector<Field>;  // in the order of the file; names are distinct

  Value();  // null
  Value(std::nullptr_t);
  Value(bool value);
  Value(int value);
  Value(int64_t value);
  Value(double value);
  Value(std::string value);
  Value(std::string_view value);
  Value(const char* value);
  Value(List value);
  Value(Object value);

  bool is_null() const { return std::holds_alternative<std::monostate>(data_); }
  // Null if the value is of another kind.
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&data_); }
  const double* number() const { return std::get_if<double>(&data_); }  // not an integer
  const std::string* string() const { return std::get_if<std::string>(&data_); }
  std::string* string() { return std::get_if<std::string>(&data_); }
  const List* list() const { return std::get_if<List>(&data_); }
  List* list() { return std::get_if<List>(&data_); }
  const Object* object() const { return std::get_if<Object>(&data_); }
  Object* object() { return std::get_if<Object>(&data_); }

  // The field of an object; null if there is none or the value is not an object.
  const Value* find(std::string_view name) const;
  Value* find(std::string_view name);
  // The field if it is a text, or a list; null otherwise.
  const std::string* find_string(std::string_view name) const;
  std::string* find_string(std::string_view name);
  const List* find_list(std::string_view name) const;
  List* find_list(std::string_view name);

  // "a string", "an object", "null": for messages.
  const char* kind_name() const;

  bool operator==(const Value& other) const;

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, List, Object> data_;
};

struct Value::Field {
  std::string name;
  Value value;
  bool operator==(const Field&) const = default;
};

// Here because clang needs to know Field first.
inline Value::Value() = default;
inline Value::Value(std::nullptr_t) {}
inline Value::Value(bool value) : data_(value) {}
inline Value::Value(int value) : data_(int64_t{value}) {}
inline Value::Value(int64_t value) : data_(value) {}
inline Value::Value(double value) : data_(value) {}
inline Value::Value(std::string value) : data_(std::move(value)) {}
inline Value::Value(std::string_view value) : data_(std::string(value)) {}
inline Value::Value(const char* value) : data_(std::string(value)) {}

}  // namespace tessera
