// The % operator of strings, and how a value is written by a format specification.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>

#include "jinja/text/unicode_text.h"
#include "jinja/values/operators.h"
#include "jinja/values/python_text.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMaxWidth = 10'000;

struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^', '='
  char sign = '-';
  bool alternate = false;
  bool zero = false;  // zeros before numbers, unless they are aligned otherwise
  int64_t width = 0;
  int64_t min_digits = 0;
  char grouping = 0;  // ',' or '_'
  int64_t precision = -1;
  char type = 0;
};

bool is_one_of(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

std::string grouped(const std::string& digits, char separator, size_t group) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % group == 0) out += separator;
    out += digits[i];
  }
  return out;
}

// Digits of a magnitude in the notation of `type`.
std::string integer_digits(uint64_t value, char type) {
  return fmt::format(fmt::runtime(fmt::format("{{:{}}}", type)), value);
}

// Has as many digits as the notation of 'g', but always a point or an exponent.
std::string short_float_digits(double magnitude, int64_t precision) {
  precision = std::max<int64_t>(precision, 1);
  const std::string text = fmt::format("{:.{}g}", magnitude, precision);
  if (text.find_first_of(".en") != std::string::npos) return text;
  if (std::ssize(text) < precision) return text + ".0";
  const std::string scientific = fmt::format("{:.{}e}", magnitude, precision - 1);
  const size_t exponent = scientific.find('e');
  std::string mantissa = scientific.substr(0, exponent);
  if (mantissa.find('.') != std::string::npos) mantissa.erase(mantissa.find_last_not_of('0') + 1);
  if (mantissa.back() == '.') mantissa.pop_back();
  return mantissa + scientific.substr(exponent);
}

std::string float_digits(double magnitude, char type, int64_t precision, bool alternate) {
  const bool is_general = type == 'g' || type == 'G';
  const int64_t digits = precision < 0 ? 6 : is_general ? std::max<int64_t>(precision, 1) : precision;
  return fmt::format(fmt::runtime(fmt::format("{{:{}.{}{}}}", alternate ? "#" : "", digits, type)),
                     magnitude);
}

// The padding that fills a field of spec.width around `size` code points: before and after them.
std::pair<std::string, std::string> padding(int64_t size, const FormatSpec& spec, char default_align) {
  const int64_t missing = std::max<int64_t>(0, spec.width - size);
  const char align = spec.align == 0 ? default_align : spec.align;
  const int64_t before = align == '>' || align == '=' ? missing : align == '^' ? missing / 2 : 0;
  std::string left, right;
  for (int64_t i = 0; i < missing; ++i) (i < before ? left : right) += spec.fill;
  return {left, right};
}

std::string padded(const std::string& sign, const std::string& body, const FormatSpec& spec,
                   char default_align) {
  const auto [left, right] =
      padding(static_cast<int64_t>(sign.size()) + count_code_points(body), spec, default_align);
  const char align = spec.align == 0 ? default_align : spec.align;
  return align == '=' ? sign + left + body : left + sign + body + right;
}

// chr(value)
std::string character_of(Rendering& r, const Datum& value) {
  if (value.integer < 0 || value.integer > 0x10FFFF) r.fail("%c arg not in range(0x110000)");
  if (value.integer >= 0xD800 && value.integer < 0xE000) r.fail("%c of half a character, {}", value.integer);
  std::string text;
  append_utf8(static_cast<char32_t>(value.integer), &text);
  return text;
}

std::string sign_of(bool negative, char style) {
  if (negative) return "-";
  return style == '-' ? "" : std::string(1, style);
}

std::string format_number(Rendering& r, const Datum& value, const FormatSpec& spec) {
  const bool as_float =
      value.is(Kind::kFloat) ||
      (spec.type != 0 && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos);
  const bool has_radix = !as_float && spec.type != 0 && is_one_of(spec.type, "boxX");
  std::string body;
  bool negative = false;
  if (as_float) {
    double magnitude = value.as_double();
    negative = std::signbit(magnitude) && !std::isnan(magnitude);
    magnitude = std::abs(magnitude);
    if (spec.type == '%') {
      body = float_digits(magnitude * 100, 'f', spec.precision, false) + "%";
    } else if (spec.type == 0 && spec.precision < 0) {
      body = format_float(magnitude);
    } else if (spec.type == 0) {
      body = short_float_digits(magnitude, spec.precision);
    } else {
      if (!is_one_of(spec.type, "eEfFgGn")) {
        r.fail("Unknown format code '{}' for object of type 'float'", spec.type);
      }
      body = float_digits(magnitude, spec.type == 'n' ? 'g' : spec.type, spec.precision, spec.alternate);
    }
  } else if (spec.type == 'c') {
    if (spec.grouping != 0) r.fail("Cannot specify '{}' with 'c'.", spec.grouping);
    body = character_of(r, value);
  } else {
    if (spec.type != 0 && std::string_view("bdnoxX").find(spec.type) == std::string_view::npos) {
      r.fail("Unknown format code '{}' for object of type 'int'", spec.type);
    }
    if (spec.precision >= 0) r.fail("Precision not allowed in integer format specifier");
    if (spec.grouping == ',' && has_radix) r.fail("Cannot specify ',' with '{}'.", spec.type);
    negative = value.integer < 0;
    const uint64_t magnitude =
        negative ? ~static_cast<uint64_t>(value.integer) + 1 : static_cast<uint64_t>(value.integer);
    body = integer_digits(magnitude, spec.type == 0 || spec.type == 'n' ? 'd' : spec.type);
    const int64_t missing = std::max<int64_t>(0, spec.min_digits - std::ssize(body));
    body.insert(0, static_cast<size_t>(missing), '0');
  }
  std::string sign = sign_of(negative, spec.sign);
  if (has_radix && spec.alternate) sign += {'0', spec.type};
  const char align = spec.align != 0 ? spec.align : spec.zero ? '=' : '>';
  if (spec.grouping != 0) {
    const size_t end = as_float ? std::min(body.find_first_not_of("0123456789"), body.size()) : body.size();
    const std::string rest = body.substr(end);
    body.resize(end);
    const size_t group = has_radix ? 4 : 3;
    if (end > 0 && align == '=' && spec.fill == "0") {
      // Zeros that fill the field are grouped as well.
      const int64_t room = spec.width - std::ssize(sign) - std::ssize(rest);
      int64_t size = std::ssize(body);
      while (size + (size - 1) / static_cast<int64_t>(group) < room) ++size;
      body.insert(0, static_cast<size_t>(size) - end, '0');
    }
    body = grouped(body, spec.grouping, group) + rest;
  }
  return padded(sign, body, spec, align);
}

// Padding goes character by character, and thousands of digits of a float are long arithmetic.
void charge_count(Rendering& r, int64_t count) {
  if (count > 100) r.step(4 * count);
}

int64_t parse_count(Rendering& r, std::string_view text, size_t& pos) {
  int64_t value = 0;
  for (; pos < text.size() && std::isdigit(static_cast<unsigned char>(text[pos])) != 0; ++pos) {
    value = 10 * value + (text[pos] - '0');
    if (value > kMaxWidth) r.fail("a width or precision of more than {} in a format", kMaxWidth);
  }
  charge_count(r, value);
  return value;
}

// [[fill]align][sign][#][0][width][grouping][.precision][type]
FormatSpec parse_spec(Rendering& r, std::string_view text) {
  FormatSpec spec;
  size_t pos = 0;
  bool has_fill = false;
  constexpr std::string_view kAligns = "<>^=";
  if (!text.empty()) {
    size_t after = 0;
    next_code_point(text, after);
    if (after < text.size() && kAligns.find(text[after]) != std::string_view::npos) {
      spec.fill = text.substr(0, after);
      has_fill = true;
      spec.align = text[after];
      pos = after + 1;
    } else if (kAligns.find(text[0]) != std::string_view::npos) {
      spec.align = text[pos++];
    }
  }
  const auto take = [&](std::string_view set) {
    return pos < text.size() && set.find(text[pos]) != std::string_view::npos;
  };
  if (take("+- ")) spec.sign = text[pos++];
  if (take("#")) {
    spec.alternate = true;
    ++pos;
  }
  if (!has_fill && take("0")) {
    spec.zero = true;
    spec.fill = "0";
    ++pos;
  }
  spec.width = parse_count(r, text, pos);
  if (take(",_")) spec.grouping = text[pos++];
  if (take(".")) spec.precision = parse_count(r, text, ++pos);
  if (pos < text.size()) spec.type = text[pos++];
  if (pos < text.size()) r.fail("Invalid format specifier '{}'", text);
  return spec;
}

TextBuilder format_text(Rendering& r, std::string_view text, const FormatSpec& spec) {
  const std::string_view cut = spec.precision < 0 ? text : text.substr(0, byte_offset(text, spec.precision));
  const auto [left, right] = padding(count_code_points(cut), spec, '<');
  TextBuilder out(r);
  out += left;
  out += cut;
  out += right;
  return out;
}

class PercentFormatter {
 public:
  PercentFormatter(Rendering& r, std::string_view format, const Datum& arguments)
      : r_(r), format_(format), arguments_(arguments), is_tuple_(arguments.is(Kind::kTuple)) {}

  TextBuilder run() {
    while (pos_ < format_.size()) {
      const char c = format_[pos_++];
      if (c != '%') {
        out_ += format_.substr(pos_ - 1, 1);
      } else {
        directive();
      }
    }
    // Whatever has items may have some that are not used.
    const bool has_items = is_mapping(arguments_) || arguments_.is(Kind::kList) ||
                           arguments_.is(Kind::kRange) || arguments_.is_undefined();
    if (is_tuple_ ? used_ < arguments_.list->size : used_ < 1 && !has_items) {
      r_.fail("not all arguments converted during string formatting");
    }
    return out_;
  }

 private:
  char peek() const {
    if (pos_ >= format_.size()) r_.fail("incomplete format");
    return format_[pos_];
  }

  Datum next_argument() {
    if (is_tuple_ ? used_ >= arguments_.list->size : used_ >= 1)
      r_.fail("not enough arguments for format string");
    return is_tuple_ ? arguments_.list->items[used_++] : (++used_, arguments_);
  }

  int64_t take_count() {
    if (pos_ >= format_.size() || format_[pos_] != '*') return parse_count(r_, format_, pos_);
    ++pos_;
    const int64_t count = std::clamp<int64_t>(to_integer(r_, next_argument(), "%"), -kMaxWidth, kMaxWidth);
    charge_count(r_, std::abs(count));
    return count;
  }

  void directive() {
    Datum value;
    if (peek() == '(') {
      const size_t end = format_.find(')', pos_);
      if (end == std::string_view::npos) r_.fail("incomplete format key");
      if (!is_mapping(arguments_)) r_.fail("format requires a mapping");
      const std::string_view key = format_.substr(pos_ + 1, end - pos_ - 1);
      value = dict_find(r_, arguments_, key);
      if (value.is_missing()) r_.fail("KeyError: '{}'", key);
      pos_ = end + 1;
    }
    FormatSpec spec;
    bool zero = false;
    for (; std::string_view("#0- +").find(peek()) != std::string_view::npos; ++pos_) {
      const char flag = format_[pos_];
      if (flag == '-') spec.align = '<';
      if (flag == '0') zero = true;
      if (flag == '#') spec.alternate = true;
      if (flag == '+' || (flag == ' ' && spec.sign == '-')) spec.sign = flag;
    }
    spec.width = take_count();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (peek() == '.') {
      ++pos_;
      spec.precision = std::max<int64_t>(0, take_count());
    }
    while (std::string_view("hlL").find(peek()) != std::string_view::npos) ++pos_;
    const char type = format_[pos_++];
    if (type == '%') {
      out_ += '%';
      return;
    }
    if (value.is_missing()) value = next_argument();
    out_ += converted(value, type, spec, zero);
  }

  TextBuilder converted(const Datum& value, char type, FormatSpec spec, bool zero) {
    if (type == 's' || type == 'r' || type == 'a') {
      TextBuilder text(r_);
      type == 's' ? append_str(r_, text, value) : append_repr(r_, text, value);
      if (spec.align == 0) spec.align = '>';
      return format_text(r_, r_.text(text.finish()), spec);
    }
    return TextBuilder(r_, converted_number(value, type, spec, zero));
  }

  std::string converted_number(const Datum& value, char type, FormatSpec spec, bool zero) {
    std::string text;
    if (type == 'c') {
      if (value.is_string() && *length_of(r_, value) == 1) text = r_.text(value);
      if (value.is_integral()) text = character_of(r_, value);
      if (text.empty()) r_.fail("%c requires int or char");
      if (spec.align == 0) spec.align = '>';
      return format_text(r_, text, spec).text();
    }
    if (std::string_view("diuxXofFeEgG").find(type) == std::string_view::npos) {
      r_.fail("unsupported format character '{}'", type);
    }
    if (value.is_undefined()) r_.fail_undefined(value);
    const bool is_integer = std::string_view("diuxXo").find(type) != std::string_view::npos;
    if (!value.is_number()) {
      r_.fail("%{} format: a {} number is required, not {}", type, is_integer ? "integer" : "real",
              type_name(value));
    }
    if (zero && spec.align == 0) {
      spec.align = '=';
      spec.fill = "0";
    }
    Datum converted_value = value;
    if (is_integer && value.is(Kind::kFloat)) {
      if (type != 'd' && type != 'i' && type != 'u')
        r_.fail("%{} format: an integer is required, not float", type);
      if (!(std::abs(value.number) < 9.2e18))
        r_.fail("the number {} does not fit in 64 bits", format_float(value.number));
      converted_value = integer(static_cast<int64_t>(value.number));
    }
    spec.type = type == 'i' || type == 'u' ? 'd' : type;
    if (!is_integer) return format_number(r_, number(converted_value.as_double()), spec);
    spec.min_digits = std::max<int64_t>(0, spec.precision);
    spec.precision = -1;
    return format_number(r_, integer(converted_value.integer), spec);
  }

  Rendering& r_;
  std::string_view format_;
  const Datum& arguments_;
  const bool is_tuple_;
  size_t pos_ = 0;
  int64_t used_ = 0;
  TextBuilder out_{r_};
};

}  // namespace

TextBuilder format_value(Rendering& r, const Datum& value, std::string_view spec_text) {
  TextBuilder text(r);
  if (spec_text.empty()) {
    append_str(r, text, value);
    return text;
  }
  const FormatSpec spec = parse_spec(r, spec_text);
  if (value.is_number()) {
    return TextBuilder(r, format_number(r, value, spec));
  }
  if (!value.is_string()) {
    r.fail("unsupported format string passed to {}.__format__", type_name(value));
  }
  if (spec.type != 0 && spec.type != 's')
    r.fail("Unknown format code '{}' for object of type 'str'", spec.type);
  return format_text(r, r.text(to_str(r, value)), spec);
}

Datum percent_format(Rendering& r, const Datum& format, const Datum& arguments) {
  return PercentFormatter(r, r.text(format), arguments).run().finish(format.markup);
}

}  // namespace tessera::jinja
