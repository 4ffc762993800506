#include "jinja/values/operators.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "jinja/text/unicode_text.h"
#include "jinja/values/python_text.h"

namespace tessera::jinja {
namespace {

bool is_hashable(Rendering& r, const Datum& value) {
  if (value.is(Kind::kTuple)) {
    const Rendering::Nesting nesting(r);
    r.step(value.list->size);
    return std::all_of(value.list->items, value.list->items + value.list->size,
                       [&](const Datum& item) { return is_hashable(r, item); });
  }
  return !value.is(Kind::kList) && !value.is(Kind::kDict);
}

// Has all integers and all floats.
long double wide(const Datum& d) {
  return d.is(Kind::kFloat) ? d.number : static_cast<long double>(d.integer);
}

bool equal_text(Rendering& r, const Datum& a, const Datum& b) {
  return a.size == b.size && r.text(a) == r.text(b);
}

bool equal_sequences(Rendering& r, const Datum& a, const Datum& b) {
  const int64_t size = *size_of(a);
  if (size != *size_of(b)) return false;
  for (int64_t i = 0; i < size; ++i) {
    if (!equal(r, list_item(r, a, i), list_item(r, b, i))) return false;
  }
  return true;
}

bool equal_dicts(Rendering& r, const Datum& a, const Datum& b) {
  const int64_t size = *size_of(a);
  if (size != *size_of(b)) return false;
  for (int64_t i = 0; i < size; ++i) {
    const Entry entry = dict_entry(r, a, i);
    const Datum other = dict_find(r, b, entry.key);
    if (other.is_missing() || !equal(r, entry.value, other)) return false;
  }
  return true;
}

[[noreturn]] void fail_operands(Rendering& r, std::string_view operation, const Datum& a, const Datum& b) {
  if (a.is_undefined()) r.fail_undefined(a);
  if (b.is_undefined()) r.fail_undefined(b);
  r.fail("unsupported operand type(s) for {}: '{}' and '{}'", operation, type_name(a), type_name(b));
}

[[noreturn]] void fail_overflow(Rendering& r, std::string_view operation, int64_t a, int64_t b) {
  r.fail("{} {} {} does not fit in 64 bits", a, operation, b);
}

Datum repeat(Rendering& r, const Datum& value, int64_t count) {
  count = std::max<int64_t>(count, 0);
  if (value.is_string()) {
    if (value.size > 0 && count > r.options.max_output_bytes / value.size) {
      r.fail("a string of {} bytes times {} is too large", value.size, count);
    }
    const std::string_view text = r.text(value);
    const int64_t size = count * value.size;
    char* out = r.string_room(size);
    for (int64_t i = 0; i < count; ++i) {
      r.step();
      std::copy_n(text.data(), text.size(), out + i * value.size);
      r.copied(text, out + i * value.size);
    }
    return string({out, static_cast<size_t>(size)}, value.markup);
  }
  const int64_t size = *size_of(value);
  ListBuilder items(r);
  for (int64_t k = 0; k < count && size > 0; ++k) {
    r.step(size);
    for (int64_t i = 0; i < size; ++i) items.push(list_item(r, value, i));
  }
  return items.finish(value.kind);
}

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

double python_modulo(double a, double b) {
  const double remainder = std::fmod(a, b);
  if (remainder == 0) return std::copysign(0.0, b);
  return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

Datum integer_power(Rendering& r, int64_t base, int64_t exponent) {
  int64_t result = 1;
  int64_t square = base;
  for (uint64_t rest = static_cast<uint64_t>(exponent); rest > 0; rest >>= 1) {
    if ((rest & 1) != 0 && __builtin_mul_overflow(result, square, &result))
      fail_overflow(r, "**", base, exponent);
    if (rest > 1 && __builtin_mul_overflow(square, square, &square)) fail_overflow(r, "**", base, exponent);
  }
  return integer(result);
}

Datum integer_arithmetic(Rendering& r, Arithmetic operation, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (operation) {
    case Arithmetic::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) fail_overflow(r, "-", a, b);
      return integer(result);
    case Arithmetic::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) fail_overflow(r, "*", a, b);
      return integer(result);
    case Arithmetic::kPower:
      if (b >= 0) return integer_power(r, a, b);
      if (a == 0) r.fail("0.0 cannot be raised to a negative power");
      return number(std::pow(static_cast<double>(a), static_cast<double>(b)));
    default:
      break;
  }
  if (b == 0)
    r.fail_with(operation == Arithmetic::kDivide ? "division by zero" : "integer division or modulo by zero");
  if (operation == Arithmetic::kDivide) return number(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {
    if (operation == Arithmetic::kModulo) return integer(0);
    if (a == std::numeric_limits<int64_t>::min()) fail_overflow(r, "//", a, b);
  }
  const int64_t quotient = floor_divide(a, b);
  return integer(operation == Arithmetic::kFloorDivide ? quotient : a - quotient * b);
}

Datum float_arithmetic(Rendering& r, Arithmetic operation, double a, double b) {
  switch (operation) {
    case Arithmetic::kSubtract:
      return number(a - b);
    case Arithmetic::kMultiply:
      return number(a * b);
    case Arithmetic::kPower: {
      if (a == 0 && b < 0) r.fail("0.0 cannot be raised to a negative power");
      if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
        r.fail("complex numbers are not supported");
      }
      const double power = std::pow(a, b);
      if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) r.fail("Numerical result out of range");
      return number(power);
    }
    default:
      break;
  }
  if (b == 0)
    r.fail_with(operation == Arithmetic::kDivide ? "float division by zero" : "float floor division by zero");
  if (operation == Arithmetic::kDivide) return number(a / b);
  const double remainder = python_modulo(a, b);
  if (operation == Arithmetic::kModulo) return number(remainder);
  return number(std::round((a - remainder) / b));
}

std::string_view symbol(Arithmetic operation) {
  static constexpr std::array<std::string_view, 6> kSymbols = {"-", "*", "/", "//", "%", "** or pow()"};
  return kSymbols[static_cast<size_t>(operation)];
}

}  // namespace

std::string_view type_name(const Datum& value) {
  static constexpr std::array<std::string_view, 20> kNames = {
      "Undefined", "Undefined", "NoneType",    "bool",  "int",      "float",
      "str",       "list",      "tuple",       "dict",  "range",    "",
      "",          "Namespace", "LoopContext", "Macro", "function", "builtin_function_or_method",
      "Cycler",    "Joiner"};
  static_assert(kNames.size() == static_cast<size_t>(Kind::kJoiner) + 1);
  if (value.is(Kind::kIterator)) return value.iterator->type_name;
  if (value.is(Kind::kView)) {
    return value.view->kind == ViewKind::kItems  ? "dict_items"
           : value.view->kind == ViewKind::kKeys ? "dict_keys"
                                                 : "dict_values";
  }
  return value.is_string() && value.markup ? "Markup" : kNames[static_cast<size_t>(value.kind)];
}

std::string object_name(const Datum& value) {
  if (value.is(Kind::kNone)) return "None";
  const bool is_built_in =
      value.is_number() || value.is_string() || value.is_sequence() || value.is(Kind::kDict);
  const std::string_view module = value.is_string() && value.markup                 ? "markupsafe."
                                  : value.is(Kind::kNamespace)                      ? "jinja2.utils."
                                  : value.is(Kind::kLoop) || value.is(Kind::kMacro) ? "jinja2.runtime."
                                                                                    : "";
  return fmt::format("{}{}{}", module, type_name(value), is_built_in || !module.empty() ? " object" : "");
}

bool is_true(const Datum& value) {
  switch (value.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.integer != 0;
    case Kind::kFloat:
      return value.number != 0;
    case Kind::kString:
      return value.size > 0;
    default:
      return size_of(value).value_or(1) > 0;
  }
}

bool same(Rendering& r, const Datum& a, const Datum& b) {
  if (a.kind != b.kind) return false;
  if (a.is(Kind::kNone)) return true;
  if (a.is_string()) return equal_text(r, a, b);
  return a.foreign == b.foreign && a.integer == b.integer;
}

bool equal(Rendering& r, const Datum& a, const Datum& b) {
  r.step();
  if (a.is_string() && b.is_string()) return equal_text(r, a, b);
  if (a.is_integral() && b.is_integral()) return a.integer == b.integer;
  if (a.is_number() && b.is_number()) return wide(a) == wide(b);
  if (a.kind != b.kind) return false;
  const Rendering::Nesting nesting(r);
  switch (a.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
      return equal_sequences(r, a, b);
    case Kind::kDict:
      return equal_dicts(r, a, b);
    case Kind::kView:
      return a.view->kind == b.view->kind && a.view->kind != ViewKind::kValues &&
             equal_sequences(r, to_list(r, a), to_list(r, b));
    default:
      return same(r, a, b);
  }
}

bool less(Rendering& r, const Datum& a, const Datum& b, std::string_view operation) {
  r.step();
  if (a.is_string() && b.is_string()) return r.text(a) < r.text(b);
  if (a.is_integral() && b.is_integral()) return a.integer < b.integer;
  if (a.is_number() && b.is_number()) return wide(a) < wide(b);
  if (a.is_undefined()) r.fail_undefined(a);
  if (b.is_undefined()) r.fail_undefined(b);
  if (a.is_sequence() && a.kind == b.kind) {
    const Rendering::Nesting nesting(r);
    const int64_t size = std::min(*size_of(a), *size_of(b));
    for (int64_t i = 0; i < size; ++i) {
      const Datum x = list_item(r, a, i);
      const Datum y = list_item(r, b, i);
      if (!equal(r, x, y)) return less(r, x, y, operation);
    }
    return *size_of(a) < *size_of(b);
  }
  r.fail("'{}' not supported between instances of '{}' and '{}'", operation, type_name(a), type_name(b));
}

bool compare(Rendering& r, Comparison comparison, const Datum& a, const Datum& b) {
  const auto is_nan = [](const Datum& d) { return d.is(Kind::kFloat) && std::isnan(d.number); };
  switch (comparison) {
    case Comparison::kEqual:
      return equal(r, a, b);
    case Comparison::kNotEqual:
      return !equal(r, a, b);
    case Comparison::kLess:
      return less(r, a, b, "<");
    case Comparison::kGreater:
      return less(r, b, a, ">");
    case Comparison::kLessEqual:
      return !less(r, b, a, "<=") && !is_nan(a) && !is_nan(b);
    case Comparison::kGreaterEqual:
      return !less(r, a, b, ">=") && !is_nan(a) && !is_nan(b);
    case Comparison::kIn:
      return contains(r, b, a);
    case Comparison::kNotIn:
      return !contains(r, b, a);
  }
  return false;
}

bool contains(Rendering& r, const Datum& container, const Datum& item) {
  if (container.is_string()) {
    if (!item.is_string()) r.fail("'in <string>' requires string as left operand, not {}", type_name(item));
    return find_text(r.text(container), r.text(item)) != std::string_view::npos;
  }
  if (container.is(Kind::kDict)) {
    if (!is_hashable(r, item)) r.fail("unhashable type: '{}'", type_name(item));
    return !dict_find(r, container, item).is_missing();
  }
  if (!is_iterable(container)) r.fail("argument of type '{}' is not iterable", type_name(container));
  const Datum list = container.is_sequence() ? container : to_list(r, container);
  for (int64_t i = 0; i < *size_of(list); ++i) {
    if (equal(r, list_item(r, list, i), item)) return true;
  }
  return false;
}

Datum add(Rendering& r, const Datum& a, const Datum& b) {
  if (a.is_string() && b.is_string()) {
    if (!a.markup && !b.markup) return r.concat(a, b);
    const auto safe = [&](const Datum& d) { return d.markup ? d : escape_html(r, d); };
    return with_markup(r.concat(safe(a), safe(b)), true);
  }
  if (a.is_integral() && b.is_integral()) {
    int64_t sum = 0;
    if (__builtin_add_overflow(a.integer, b.integer, &sum)) fail_overflow(r, "+", a.integer, b.integer);
    return integer(sum);
  }
  if (a.is_number() && b.is_number()) return number(a.as_double() + b.as_double());
  if (a.is_sequence() && a.kind == b.kind) {
    ListBuilder items(r);
    r.step(*size_of(a) + *size_of(b));
    for (int64_t i = 0; i < *size_of(a); ++i) items.push(list_item(r, a, i));
    for (int64_t i = 0; i < *size_of(b); ++i) items.push(list_item(r, b, i));
    return items.finish(a.kind);
  }
  if (a.is_undefined()) r.fail_undefined(a);
  if (b.is_undefined()) r.fail_undefined(b);
  if (a.is_string()) r.fail("can only concatenate str (not \"{}\") to str", type_name(b));
  if (a.is_sequence()) {
    r.fail("can only concatenate {} (not \"{}\") to {}", type_name(a), type_name(b), type_name(a));
  }
  fail_operands(r, "+", a, b);
}

Datum arithmetic(Rendering& r, Arithmetic operation, const Datum& a, const Datum& b) {
  r.step();
  if (a.is_integral() && b.is_integral()) return integer_arithmetic(r, operation, a.integer, b.integer);
  if (a.is_number() && b.is_number()) return float_arithmetic(r, operation, a.as_double(), b.as_double());
  if (operation == Arithmetic::kModulo && a.is_string()) return percent_format(r, a, b);
  if (operation == Arithmetic::kMultiply) {
    const auto repeats = [](const Datum& d) { return d.is_string() || d.is_sequence(); };
    if (repeats(a) && b.is_integral()) return repeat(r, a, b.integer);
    if (repeats(b) && a.is_integral()) return repeat(r, b, a.integer);
  }
  fail_operands(r, symbol(operation), a, b);
}

Datum negate(Rendering& r, const Datum& value) {
  if (value.is_integral()) return integer_arithmetic(r, Arithmetic::kSubtract, 0, value.integer);
  if (value.is(Kind::kFloat)) return number(-value.number);
  if (value.is_undefined()) r.fail_undefined(value);
  r.fail("bad operand type for unary -: '{}'", type_name(value));
}

Datum plus(Rendering& r, const Datum& value) {
  if (value.is_integral()) return integer(value.integer);
  if (value.is(Kind::kFloat)) return value;
  if (value.is_undefined()) r.fail_undefined(value);
  r.fail("bad operand type for unary +: '{}'", type_name(value));
}

int64_t to_integer(Rendering& r, const Datum& value, std::string_view function) {
  if (value.is_undefined()) r.fail_undefined(value);
  if (!value.is_integral()) r.fail("{}: expected an integer, found {}", function, object_name(value));
  return value.integer;
}

std::string_view to_string_argument(Rendering& r, const Datum& value, std::string_view function) {
  if (value.is_undefined()) r.fail_undefined(value);
  if (!value.is_string()) r.fail("{}: expected a string, found {}", function, object_name(value));
  return r.text(value);
}

}  // namespace tessera::jinja
