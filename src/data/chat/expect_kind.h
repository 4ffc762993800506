// The fields of rows and messages that must be there and of one kind.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/value.h"

namespace tessera {

// Error(kBadData) "WHERE: expected WHAT, found a list"; "found none" without a value.
[[noreturn]] inline void fail_kind(const Value* found, const std::string& where, std::string_view what) {
  fail(ExitCode::kBadData, "{}: expected {}, found {}", where, what,
       found == nullptr ? "none" : found->kind_name());
}

// The content of `value` if it is of that kind; fail_kind() otherwise. Null: there is no such field.
template <typename AnyValue>
auto& expect_string(AnyValue* value, const std::string& where, std::string_view what = "a string") {
  if (value == nullptr || value->string() == nullptr) fail_kind(value, where, what);
  return *value->string();
}

template <typename AnyValue>
auto& expect_list(AnyValue* value, const std::string& where, std::string_view what = "a list") {
  if (value == nullptr || value->list() == nullptr) fail_kind(value, where, what);
  return *value->list();
}

template <typename AnyValue>
auto& expect_object(AnyValue* value, const std::string& where, std::string_view what = "an object") {
  if (value == nullptr || value->object() == nullptr) fail_kind(value, where, what);
  return *value->object();
}

}  // namespace tessera
