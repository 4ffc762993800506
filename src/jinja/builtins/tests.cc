// Tests (`x is defined`), and the tables in which filters and tests are found.
#include <algorithm>
#include <array>
#include <cmath>

#include "jinja/builtins/functions.h"
#include "jinja/builtins/python_text.h"
#include "jinja/runtime/operators.h"

namespace tessera::jinja {
namespace {

Datum other(Rendering& r, const Arguments& args, const char* name) {
  static constexpr const char* kNames[] = {"other"};
  return bind(r, args, name, kNames, 1)[0];
}

template <bool (*Is)(const Datum&)>
Datum is(Rendering& r, const Datum& value, const Arguments& args) {
  bind_none(r, args, "this test");
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
  return boolean(equal(r, arithmetic(r, ExprKind::kModulo, value, divisor), integer(remainder)));
}

Datum odd(Rendering& r, const Datum& value, const Arguments& args) {
  bind_none(r, args, "odd");
  return has_remainder(r, value, integer(2), 1);
}

Datum even(Rendering& r, const Datum& value, const Arguments& args) {
  bind_none(r, args, "even");
  return has_remainder(r, value, integer(2), 0);
}

Datum divisible_by(Rendering& r, const Datum& value, const Arguments& args) {
  return has_remainder(r, value, other(r, args, "divisibleby"), 0);
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
  return boolean(same(r, value, other(r, args, "sameas")));
}

template <Comparison kComparison>
Datum compares(Rendering& r, const Datum& value, const Arguments& args) {
  return boolean(compare(r, kComparison, value, other(r, args, "comparison")));
}

Datum is_filter(Rendering& r, const Datum& value, const Arguments& args) {
  bind_none(r, args, "filter");
  return boolean(value.is_string() && find_filter(r.text(value)) != nullptr);
}

Datum is_test(Rendering& r, const Datum& value, const Arguments& args) {
  bind_none(r, args, "test");
  return boolean(value.is_string() && find_test(r.text(value)) != nullptr);
}

constexpr FunctionEntry kTests[] = {
    {"!=", compares<Comparison::kNotEqual>},
    {"<", compares<Comparison::kLess>},
    {"<=", compares<Comparison::kLessEqual>},
    {"==", compares<Comparison::kEqual>},
    {">", compares<Comparison::kGreater>},
    {">=", compares<Comparison::kGreaterEqual>},
    {"boolean", is<is_boolean>},
    {"callable", is<is_callable>},
    {"defined", is<is_defined>},
    {"divisibleby", divisible_by},
    {"eq", compares<Comparison::kEqual>},
    {"equalto", compares<Comparison::kEqual>},
    {"escaped", is<is_escaped>},
    {"even", even},
    {"false", is<is_false_value>},
    {"filter", is_filter},
    {"float", is<is_float>},
    {"ge", compares<Comparison::kGreaterEqual>},
    {"greaterthan", compares<Comparison::kGreater>},
    {"gt", compares<Comparison::kGreater>},
    {"in", compares<Comparison::kIn>},
    {"integer", is<is_integer>},
    {"iterable", is<is_iterable_value>},
    {"le", compares<Comparison::kLessEqual>},
    {"lessthan", compares<Comparison::kLess>},
    {"lower", lower},
    {"lt", compares<Comparison::kLess>},
    {"mapping", is<is_mapping>},
    {"ne", compares<Comparison::kNotEqual>},
    {"none", is<is_none>},
    {"number", is<is_number>},
    {"odd", odd},
    {"sameas", same_as},
    {"sequence", is<is_sequence>},
    {"string", is<is_string>},
    {"test", is_test},
    {"true", is<is_true_value>},
    {"undefined", is<is_undefined>},
    {"upper", upper},
};

}  // namespace

const FunctionEntry* find_test(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kTests), std::end(kTests), [&](const auto& e) { return e.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

const FunctionEntry* find_filter(std::string_view name) {
  for (const FunctionTable* table :
       {&text_filters(), &value_filters(), &sequence_filters(), &grouping_filters()}) {
    const auto found =
        std::find_if(table->begin(), table->end(), [&](const auto& e) { return e.name == name; });
    if (found != table->end()) return &*found;
  }
  return nullptr;
}

bool is_refused_filter(std::string_view name) {
  constexpr std::array<std::string_view, 5> kRefused = {"pprint", "random", "striptags", "urlize",
                                                        "wordwrap"};
  return std::find(kRefused.begin(), kRefused.end(), name) != kRefused.end();
}

}  // namespace tessera::jinja
