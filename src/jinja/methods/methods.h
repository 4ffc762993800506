// Methods of strings, dicts, lists and cyclers, found by name, and how attributes and elements are looked up.
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
const FunctionEntry* find_cycler_method(std::string_view name);

// Methods of lists but not of tuples.
bool is_refused_list_method(std::string_view name);

// Stands for methods that change their object, which the sandbox refuses.
Datum refused_method(Rendering& r, const Datum& self, const Arguments& args);

// x[index] and x.name as Jinja's environment looks them up: undefined if absent.
Datum get_item(Rendering& r, const Datum& object, const Datum& index);
Datum get_attribute(Rendering& r, const Datum& object, std::string_view name);
// x.name without a look at the elements of x.
Datum get_own_attribute(Rendering& r, const Datum& object, std::string_view name);

// A method bound to `object`; missing if there is no such method.
Datum bound_method(Rendering& r, const Datum& object, const FunctionEntry* entry);

// str.format.
Datum brace_format(Rendering& r, std::string_view format, const Arguments& args);

}  // namespace tessera::jinja
