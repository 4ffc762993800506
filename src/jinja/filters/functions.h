// Filters, tests and global functions, each found by its name.
#pragma once

#include <string_view>
#include <vector>

#include "jinja/methods/methods.h"

namespace tessera::jinja {

const FunctionEntry* find_filter(std::string_view name);
const FunctionEntry* find_test(std::string_view name);
const FunctionEntry* find_global(std::string_view name);

// Filters of Jinja that are not supported here.
bool is_unsupported_filter(std::string_view name);

// The tables of filters, one per file.
FunctionTable text_filters();
FunctionTable value_filters();
FunctionTable sequence_filters();
FunctionTable grouping_filters();

// The `attribute` argument of filters: "name", "a.b.0", an index; for `sort` several with commas between.
class AttributeGetter {
 public:
  // `attribute` may be missing or none: the value itself. Missing `default_value`: undefined stays undefined.
  AttributeGetter(Rendering& r, const Datum& attribute, bool ignore_case = false,
                  const Datum& default_value = {});
  Datum operator()(const Datum& value) const;

 private:
  Rendering& r_;
  bool ignore_case_;
  Datum default_value_;
  std::vector<Datum> path_;
};

}  // namespace tessera::jinja
