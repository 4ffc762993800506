// Filters, tests, global functions and methods, each found by its name.
#pragma once

#include <string_view>
#include <vector>

#include "jinja/runtime/datum.h"

namespace tessera::jinja {

// Null if there is none of this name.
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
using FunctionTable = std::vector<FunctionEntry>;
const FunctionTable& text_filters();
const FunctionTable& value_filters();
const FunctionTable& sequence_filters();
const FunctionTable& grouping_filters();

}  // namespace tessera::jinja
