// Filters, tests and global functions, each found by its name.
#pragma once

#include <string_view>

#include "jinja/methods/methods.h"

namespace tessera::jinja {

const FunctionEntry* find_filter(std::string_view name);
const FunctionEntry* find_test(std::string_view name);
const FunctionEntry* find_global(std::string_view name);

// Filters and tests of Jinja that are not supported here.
bool is_unsupported_filter(std::string_view name);
bool is_unsupported_test(std::string_view name);

// The tables of filters, one per file.
FunctionTable text_filters();
FunctionTable value_filters();
FunctionTable sequence_filters();
FunctionTable grouping_filters();

}  // namespace tessera::jinja
