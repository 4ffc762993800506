// Filters, tests, global functions and methods, each found by its name.
#pragma once

#include <span>
#include <string_view>

#include "jinja/runtime/datum.h"

namespace tessera::jinja {

using FunctionTable = std::span<const FunctionEntry>;

// Null if there is none of this name.
inline const FunctionEntry* find_function(FunctionTable table, std::string_view name) {
  for (const FunctionEntry& entry : table) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}
const FunctionEntry* find_filter(std::string_view name);
const FunctionEntry* find_test(std::string_view name);
const FunctionEntry* find_global(std::string_view name);
const FunctionEntry* find_string_method(std::string_view name);
const FunctionEntry* find_dict_method(std::string_view name);
const FunctionEntry* find_list_method(std::string_view name);
const FunctionEntry* find_cycler_method(std::string_view name);
const FunctionEntry* find_loop_method(std::string_view name);

// Methods of lists but not of tuples.
bool is_refused_list_method(std::string_view name);

// Filters of Jinja that are not supported here.
bool is_refused_filter(std::string_view name);

// Stands for methods that change their object, which the sandbox refuses.
Datum refused_method(Rendering& r, const Datum& self, const Arguments& args);

// The tables of filters, one per file.
FunctionTable text_filters();
FunctionTable value_filters();
FunctionTable sequence_filters();
FunctionTable grouping_filters();

}  // namespace tessera::jinja
