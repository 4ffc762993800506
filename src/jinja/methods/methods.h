// Methods of strings, dicts and lists, found by name, and how attributes and elements are looked up.
#pragma once

#include <span>
#include <string_view>

#include "jinja/values/rendering.h"

namespace tessera::jinja {

using FunctionTable = std::span<const FunctionEntry>;

// Null if there is none of this name.
inline const FunctionEntry* find_function(FunctionTable table, std::string_view name) {
  for (const FunctionEntry& entry : table) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}
const FunctionEntry* find_string_method(std::string_view name);
const FunctionEntry* find_dict_method(std::string_view name);
const FunctionEntry* find_list_method(std::string_view name);

// Methods of lists but not of tuples.
bool is_refused_list_method(std::string_view name);
// Methods of Python's str that are not supported here.
bool is_unsupported_string_method(std::string_view name);

// Stands for methods that change their object, which the sandbox refuses.
Datum refused_method(Rendering& r, const Datum& self, const Arguments& args);

// x[index] and x.name as Jinja's environment looks them up: undefined if absent.
Datum get_item(Rendering& r, const Datum& object, const Datum& index);
Datum get_attribute(Rendering& r, const Datum& object, std::string_view name);

}  // namespace tessera::jinja
