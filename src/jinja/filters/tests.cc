// Tests (`x is defined`), and the tables in which filters and tests are found.
#include <algorithm>
#include <array>
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
bool is_escaped(const Datum& d) { return d.is_string() && d.markup; }
bool is_callable(const Datum& d) {
  return d.is(Kind::kFunction) || d.is(Kind::kMethod) || d.is(Kind::kMacro) || d.is(Kind::kLoop) ||
         d.is(Kind::kJoiner) || d.is_undefined();
}
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

template <size_t N>
Datum text_is(Rendering& r, const Datum& value, const Arguments& args, const char (&method)[N]) {
  return r.call(*find_string_method(method), to_str(r, value), args);
}

Datum lower(Rendering& r, const Datum& value, const Arguments& args) {
  return text_is(r, value, args, "islower");
}
Datum upper(Rendering& r, const Datum& value, const Arguments& args) {
  return text_is(r, value, args, "isupper");
}

Datum same_as(Rendering& r, const Datum& value, const Arguments& args) {
  return boolean(same(r, value, args[0]));
}

template <Comparison kComparison>
Datum compares(Rendering& r, const Datum& value, const Arguments& args) {
  return boolean(compare(r, kComparison, value, args[0]));
}

Datum is_filter(Rendering& r, const Datum& value, const Arguments&) {
  return boolean(value.is_string() && find_filter(r.text(value)) != nullptr);
}

Datum is_test(Rendering& r, const Datum& value, const Arguments&) {
  return boolean(value.is_string() && find_test(r.text(value)) != nullptr);
}

constexpr FunctionEntry kTests[] = {
    {"!=", compares<Comparison::kNotEqual>, "other"},
    {"<", compares<Comparison::kLess>, "other"},
    {"<=", compares<Comparison::kLessEqual>, "other"},
    {"==", compares<Comparison::kEqual>, "other"},
    {">", compares<Comparison::kGreater>, "other"},
    {">=", compares<Comparison::kGreaterEqual>, "other"},
    {"boolean", is<is_boolean>},
    {"callable", is<is_callable>},
    {"defined", is<is_defined>},
    {"divisibleby", divisible_by, "other"},
    {"eq", compares<Comparison::kEqual>, "other"},
    {"equalto", compares<Comparison::kEqual>, "other"},
    {"escaped", is<is_escaped>},
    {"even", even},
    {"false", is<is_false_value>},
    {"filter", is_filter},
    {"float", is<is_float>},
    {"ge", compares<Comparison::kGreaterEqual>, "other"},
    {"greaterthan", compares<Comparison::kGreater>, "other"},
    {"gt", compares<Comparison::kGreater>, "other"},
    {"in", compares<Comparison::kIn>, "other"},
    {"integer", is<is_integer>},
    {"iterable", is<is_iterable_value>},
    {"le", compares<Comparison::kLessEqual>, "other"},
    {"lessthan", compares<Comparison::kLess>, "other"},
    {"lower", lower},
    {"lt", compares<Comparison::kLess>, "other"},
    {"mapping", is<is_mapping>},
    {"ne", compares<Comparison::kNotEqual>, "other"},
    {"none", is<is_none>},
    {"number", is<is_number>},
    {"odd", odd},
    {"sameas", same_as, "other"},
    {"sequence", is<is_sequence>},
    {"string", is<is_string>},
    {"test", is_test},
    {"true", is<is_true_value>},
    {"undefined", is<is_undefined>},
    {"upper", upper},
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

bool is_unsupported_filter(std::string_view name) {
  constexpr std::array<std::string_view, 5> kRefused = {"pprint", "random", "striptags", "urlize",
                                                        "wordwrap"};
  return std::find(kRefused.begin(), kRefused.end(), name) != kRefused.end();
}

}  // namespace tessera::jinja
