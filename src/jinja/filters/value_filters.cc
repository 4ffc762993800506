// Filters of single values.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "jinja/filters/functions.h"
#include "jinja/text/number_parsing.h"
#include "jinja/values/operators.h"
#include "jinja/values/python_text.h"

namespace tessera::jinja {
namespace {

Datum absolute(Rendering& r, const Datum& value, const Arguments&) {
  if (value.is(Kind::kFloat)) return number(std::abs(value.number));
  if (!value.is_integral()) r.fail("bad operand type for abs(): '{}'", type_name(value));
  return value.integer < 0 ? negate(r, value) : integer(value.integer);
}

Datum attribute(Rendering& r, const Datum& value, const Arguments& args) {
  const Datum name = to_str(r, args[0]);
  if (value.is_undefined()) r.fail_undefined(value);
  return get_own_attribute(r, value, r.text(name));
}

Datum default_value(Rendering&, const Datum& value, const Arguments& args) {
  const bool replaces = value.is_undefined() || (args.has(1) && is_true(args[1]) && !is_true(value));
  if (!replaces) return value;
  return args.has(0) ? args[0] : string({});
}

Datum length(Rendering& r, const Datum& value, const Arguments&) {
  if (value.is(Kind::kLoop)) return get_attribute(r, value, "length");
  const auto size = length_of(r, value);
  if (!size) r.fail("object of type '{}' has no len()", type_name(value));
  return integer(*size);
}

Datum truncated(Rendering& r, double value) {
  if (!(std::abs(value) < 9.2e18))
    r.fail("the number {} does not fit in an integer of 64 bits", format_float(value));
  return integer(static_cast<int64_t>(value));
}

Datum to_int(Rendering& r, const Datum& value, const Arguments& args) {
  const Datum otherwise = args.has(0) ? args[0] : integer(0);
  if (value.is_undefined()) r.fail_undefined(value);
  if (value.is_integral()) return integer(value.integer);
  if (value.is(Kind::kFloat)) return std::isnan(value.number) ? otherwise : truncated(r, value.number);
  if (!value.is_string()) return otherwise;
  const int64_t base = args.has(1) ? to_integer(r, args[1], "int") : 10;
  bool overflow = false;
  r.step(value.size / 2);
  const std::string_view text = r.text(value);
  const auto whole = parse_integer(text, static_cast<int>(std::clamp<int64_t>(base, -1, 99)), overflow);
  if (overflow) r.fail("the integer '{}' does not fit in 64 bits", text);
  if (whole) return integer(*whole);
  const auto real = parse_float(text);
  return !real || !std::isfinite(*real) ? otherwise : truncated(r, *real);
}

Datum to_float(Rendering& r, const Datum& value, const Arguments& args) {
  if (value.is_undefined()) r.fail_undefined(value);
  if (value.is_number()) return number(value.as_double());
  r.step(value.is_string() ? value.size / 4 : 0);
  const auto real = value.is_string() ? parse_float(r.text(value)) : std::nullopt;
  if (real) return number(*real);
  return args.has(0) ? args[0] : number(0);
}

// Python's round(): to even where the decimal value lies exactly between two.
double rounded(double value, int64_t precision) {
  if (!std::isfinite(value) || precision > 320) return value;
  if (precision >= 0) {
    return std::strtod(fmt::format("{:.{}f}", value, static_cast<int>(precision)).c_str(), nullptr);
  }
  const double unit = std::pow(10.0, static_cast<double>(-precision));
  return std::isinf(unit) ? 0.0 : std::nearbyint(value / unit) * unit;
}

int64_t rounded_integer(int64_t value, int64_t precision) {
  if (precision >= 0) return value;
  if (precision < -18) return 0;
  int64_t unit = 1;
  for (int64_t i = 0; i > precision; --i) unit *= 10;
  const int64_t remainder = ((value % unit) + unit) % unit;
  const int64_t down = value - remainder;
  const bool up = 2 * remainder > unit || (2 * remainder == unit && (down / unit) % 2 != 0);
  return up ? down + unit : down;
}

Datum round(Rendering& r, const Datum& value, const Arguments& args) {
  const int64_t precision = args.has(0) ? to_integer(r, args[0], "round") : 0;
  const std::string_view method = args.has(1) ? to_string_argument(r, args[1], "round") : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    r.fail("method must be common, ceil or floor");
  if (value.is_undefined()) r.fail_undefined(value);
  if (!value.is_number()) r.fail("type {} doesn't define __round__ method", type_name(value));
  if (method == "common") {
    if (value.is(Kind::kFloat)) return number(rounded(value.number, precision));
    return integer(rounded_integer(value.integer, precision));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.as_double() * scale;
  return number((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

constexpr FunctionEntry kValueFilters[] = {
    {"abs", absolute},
    {"attr", attribute, "name"},
    {"count", length},
    {"d", default_value, "[default_value boolean]"},
    {"default", default_value, "[default_value boolean]"},
    {"float", to_float, "[default]"},
    {"int", to_int, "[default base]"},
    {"length", length},
    {"round", round, "[precision method]"},
};

}  // namespace

FunctionTable value_filters() { return kValueFilters; }

}  // namespace tessera::jinja
