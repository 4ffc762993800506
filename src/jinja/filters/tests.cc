// Tests (`x is defined`), and the tables in which filters and tests are found.
#include <algorithm>
#include <cmath>

#include "jinja/filters/functions.h"
#include "jinja/values/operators.h"
#include "jinja/values/python_text.h"

namespace tessera::jinja {
namespace {

template <bool (*Is)(const Datum&)>
Datum is(Rendering&, const Datum& value, const Arguments&) {
  return boolean(Is(value));
}

bool is_defined(const Datum& d) { return !d.is_undefined(); }
bool is_undefined(const Datum& d) { return d.is_undefined(); }
bool is_none(const Datum& d) { return d.is(Kind::kNone); }
bool is_boolean(const Datum& d) { return d.is(Kind::kBool); }
bool is_false_value(const Datum& d) { return d.is(Kind::kBool) && d.integer == 0; }
bool is_true_value(const Datum& d) { return d.is(Kind::kBool) && d.integer != 0; }
bool is_integer(const Datum& d) { return d.is(Kind::kInt); }
bool is_float(const Datum& d) { return d.is(Kind::kFloat); }
bool is_number(const Datum& d) { return d.is_number(); }
bool is_string(const Datum& d) { return d.is_string(); }
bool is_sequence(const Datum& d) {
  return d.is_string() || d.is_sequence() || d.is(Kind::kDict) || d.is(Kind::kRange) || d.is_undefined();
}
bool is_iterable_value(const Datum& d) { return is_iterable(d) || d.is(Kind::kLoop); }

// value % divisor == remainder
Datum has_remainder(Rendering& r, const Datum& value, const Datum& divisor, int64_t remainder) {
  return boolean(equal(r, arithmetic(r, Arithmetic::kModulo, value, divisor), integer(remainder)));
}

Datum odd(Rendering& r, const Datum& value, const Arguments&) {
  return has_remainder(r, value, integer(2), 1);
}

Datum even(Rendering& r, const Datum& value, const Arguments&) {
  return has_remainder(r, value, integer(2), 0);
}

Datum divisible_by(Rendering& r, const Datum& value, const Arguments& args) {
  return has_remainder(r, value, args[0], 0);
}

Datum same_as(Rendering& r, const Datum& value, const Arguments& args) {
  return boolean(same(r, value, args[0]));
}

template <Comparison kComparison>
Datum compares(Rendering& r, const Datum& value, const Arguments& args) {
  return boolean(compare(r, kComparison, value, args[0]));
}

constexpr FunctionEntry kTests[] = {
    {"!=", compares<Comparison::kNotEqual>, "other"},
    {"<", compares<Comparison::kLess>, "other"},
    {"<=", compares<Comparison::kLessEqual>, "other"},
    {"==", compares<Comparison::kEqual>, "other"},
    {">", compares<Comparison::kGreater>, "other"},
    {">=", compares<Comparison::kGreaterEqual>, "other"},
    {"boolean", is<is_boolean>},
    {"defined", is<is_defined>},
    {"divisibleby", divisible_by, "other"},
    {"eq", compares<Comparison::kEqual>, "other"},
    {"equalto", compares<Comparison::kEqual>, "other"},
    {"even", even},
    {"false", is<is_false_value>},
    {"float", is<is_float>},
    {"ge", compares<Comparison::kGreaterEqual>, "other"},
    {"greaterthan", compares<Comparison::kGreater>, "other"},
    {"gt", compares<Comparison::kGreater>, "other"},
    {"in", compares<Comparison::kIn>, "other"},
    {"integer", is<is_integer>},
    {"iterable", is<is_iterable_value>},
    {"le", compares<Comparison::kLessEqual>, "other"},
    {"lessthan", compares<Comparison::kLess>, "other"},
    {"lt", compares<Comparison::kLess>, "other"},
    {"mapping", is<is_mapping>},
    {"ne", compares<Comparison::kNotEqual>, "other"},
    {"none", is<is_none>},
    {"number", is<is_number>},
    {"odd", odd},
    {"sameas", same_as, "other"},
    {"sequence", is<is_sequence>},
    {"string", is<is_string>},
    {"true", is<is_true_value>},
    {"undefined", is<is_undefined>},
};

}  // namespace

const FunctionEntry* find_test(std::string_view name) { return find_function(kTests, name); }

const FunctionEntry* find_filter(std::string_view name) {
  for (const FunctionTable table :
       {text_filters(), value_filters(), sequence_filters(), grouping_filters()}) {
    if (const FunctionEntry* found = find_function(table, name)) return found;
  }
  return nullptr;
}

// Those for web pages, layout and pages of numbers, and what depends on chance.
bool is_unsupported_filter(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "attr",  "batch",     "center",   "filesizeformat", "forceescape", "groupby",   "pprint",   "random",
      "slice", "striptags", "truncate", "urlencode",      "urlize",      "wordcount", "wordwrap", "xmlattr"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

bool is_unsupported_test(std::string_view name) {
  static constexpr std::string_view kNames[] = {"callable", "escaped", "filter", "lower", "test", "upper"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace tessera::jinja
