// The % operator of strings, and str.format.
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

bool is_one_of(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

// [[fill]align][sign][#][0][width][.precision][type], of either language.
struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^'
  char sign = '-';
  bool alternate = false, zero = false;
  int64_t width = 0, precision = -1;
  char type = 0;
};

int64_t parse_count(Rendering& r, std::string_view text, size_t& pos) {
  int64_t value = 0;
  for (; pos < text.size() && std::isdigit(static_cast<unsigned char>(text[pos])) != 0; ++pos) {
    value = 10 * value + (text[pos] - '0');
    if (value > kMaxWidth) r.fail("a width or precision of more than {} in a format", kMaxWidth);
  }
  // Padding goes character by character, and thousands of digits of a float are long arithmetic.
  if (value > 100) r.step(4 * value);
  return value;
}

// `sign` is part of `body` unless zeros come between.
std::string padded(std::string sign, std::string body, const FormatSpec& spec, char default_align) {
  const auto size = static_cast<int64_t>(sign.size()) + count_code_points(body);
  const int64_t missing = std::max<int64_t>(0, spec.width - size);
  const char align = spec.align == 0 ? default_align : spec.align;
  if (spec.zero && spec.align == 0) return sign + std::string(static_cast<size_t>(missing), '0') + body;
  const int64_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  std::string left, right;
  for (int64_t i = 0; i < missing; ++i) (i < before ? left : right) += spec.fill;
  return left + sign + body + right;
}

// Integers in the notations dxXb, floats in eEfFgG, and either without one.
std::string format_number(Rendering& r, const Datum& value, const FormatSpec& spec) {
  const bool as_float = value.is(Kind::kFloat) || (spec.type != 0 && is_one_of(spec.type, "eEfFgG"));
  if (spec.type != 0 && !is_one_of(spec.type, as_float ? "eEfFgG" : "bdxX")) {
    r.fail("Unknown format code '{}' for object of type '{}'", spec.type, type_name(value));
  }
  std::string body;
  bool negative = false;
  if (as_float) {
    const double number = value.as_double(), magnitude = std::abs(number);
    negative = std::signbit(number) && !std::isnan(number);
    const bool is_general = spec.type == 0 || is_one_of(spec.type, "gG");
    const int64_t digits = spec.precision < 0 ? 6 : std::max<int64_t>(spec.precision, is_general ? 1 : 0);
    const std::string form =
        fmt::format("{{:{}.{}{}}}", spec.alternate ? "#" : "", digits, spec.type == 0 ? 'g' : spec.type);
    body = spec.type == 0 && spec.precision < 0 ? format_float(magnitude)
                                                : fmt::format(fmt::runtime(form), magnitude);
  } else {
    if (spec.precision >= 0) r.fail("Precision not allowed in integer format specifier");
    negative = value.integer < 0;
    const auto bits = static_cast<uint64_t>(value.integer);
    const std::string form =
        fmt::format("{{:{}{}}}", spec.alternate ? "#" : "", spec.type == 0 ? 'd' : spec.type);
    body = fmt::format(fmt::runtime(form), negative ? ~bits + 1 : bits);
  }
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  return padded(sign, body, spec, '>');
}

void append_text(TextBuilder& out, std::string_view text, FormatSpec spec, char default_align) {
  const std::string_view cut = spec.precision < 0 ? text : text.substr(0, byte_offset(text, spec.precision));
  const int64_t missing = std::max<int64_t>(0, spec.width - count_code_points(cut));
  const char align = spec.align == 0 ? default_align : spec.align;
  const int64_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  for (int64_t i = 0; i < before; ++i) out += spec.fill;
  out += cut;
  for (int64_t i = before; i < missing; ++i) out += spec.fill;
}

class PercentFormatter {
 public:
  PercentFormatter(Rendering& r, std::string_view format, const Datum& arguments)
      : r_(r), format_(format), arguments_(arguments), is_tuple_(arguments.is(Kind::kTuple)) {}

  TextBuilder run() {
    while (pos_ < format_.size()) {
      if (format_[pos_++] == '%') {
        directive();
      } else {
        out_ += format_.substr(pos_ - 1, 1);
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

  // %[(key)][flags][width][.precision]type
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
    for (; is_one_of(peek(), "#0- +"); ++pos_) {
      const char flag = format_[pos_];
      if (flag == '-') spec.align = '<';
      if (flag == '0') spec.zero = true;
      if (flag == '#') spec.alternate = true;
      if (flag == '+' || (flag == ' ' && spec.sign == '-')) spec.sign = flag;
    }
    spec.width = parse_count(r_, format_, pos_);
    if (peek() == '.') spec.precision = parse_count(r_, format_, ++pos_);
    spec.type = peek();
    ++pos_;
    if (spec.type == '%') {
      out_ += '%';
      return;
    }
    append(value.is_missing() ? next_argument() : value, spec);
  }

  void append(const Datum& value, FormatSpec spec) {
    if (spec.type == 's' || spec.type == 'r') {
      TextBuilder text(r_);
      spec.type == 's' ? append_str(r_, text, value) : append_repr(r_, text, value);
      return append_text(out_, r_.text(text.finish()), spec, '>');
    }
    const bool is_integer = is_one_of(spec.type, "dixX");
    if (!is_integer && !is_one_of(spec.type, "fFeEgG")) {
      r_.fail("unsupported format character '{}'", spec.type);
    }
    if (value.is_undefined()) r_.fail_undefined(value);
    if (!value.is_number() || (value.is(Kind::kFloat) && is_one_of(spec.type, "xX"))) {
      r_.fail("%{} format: a {} number is required, not {}", spec.type, is_integer ? "integer" : "real",
              type_name(value));
    }
    if (spec.type == 'i') spec.type = 'd';
    if (!is_integer || value.is_integral()) {
      out_ += format_number(r_, is_integer ? integer(value.integer) : number(value.as_double()), spec);
      return;
    }
    if (!(std::abs(value.number) < 9.2e18))
      r_.fail("the number {} does not fit in 64 bits", format_float(value.number));
    out_ += format_number(r_, integer(static_cast<int64_t>(value.number)), spec);
  }

  Rendering& r_;
  std::string_view format_;
  const Datum& arguments_;
  const bool is_tuple_;
  size_t pos_ = 0;
  int64_t used_ = 0;
  TextBuilder out_{r_};
};

// Fields are {}, {0}, {name}, with !s, !r and a specification; attributes and elements of arguments, and
// fields within a specification, are not looked up.
class BraceFormatter {
 public:
  BraceFormatter(Rendering& r, const Arguments& args) : r_(r), args_(args) {}

  TextBuilder run(std::string_view format) {
    TextBuilder out(r_);
    for (size_t pos = 0; pos < format.size(); ++pos) {
      const char c = format[pos];
      const bool doubled = pos + 1 < format.size() && format[pos + 1] == c;
      if ((c == '{' || c == '}') && doubled) {
        out += c;
        ++pos;
      } else if (c == '}') {
        r_.fail("Single '}}' encountered in format string");
      } else if (c == '{') {
        const size_t end = format.find('}', pos);
        if (end == std::string_view::npos) r_.fail("expected '}}' before end of string");
        append_field(out, format.substr(pos + 1, end - pos - 1));
        pos = end;
      } else {
        out += format.substr(pos, 1);
      }
    }
    return out;
  }

 private:
  // name!r:spec
  void append_field(TextBuilder& out, std::string_view text) {
    r_.step();
    const size_t colon = std::min(text.find(':'), text.size());
    const std::string_view spec = text.substr(std::min(colon + 1, text.size()));
    const std::string_view head = text.substr(0, colon);
    const size_t mark = std::min(head.find('!'), head.size());
    const std::string_view conversion = head.substr(mark);
    Datum value = argument(head.substr(0, mark));
    if (conversion == "!r" || conversion == "!s") {
      TextBuilder converted(r_);
      conversion == "!r" ? append_repr(r_, converted, value) : append_str(r_, converted, value);
      value = converted.finish();
    } else if (!conversion.empty()) {
      r_.fail("Unknown conversion specifier {}", conversion);
    }
    append_value(out, value, spec);
  }

  void append_value(TextBuilder& out, const Datum& value, std::string_view spec_text) {
    if (spec_text.empty()) return append_str(r_, out, value);
    const FormatSpec spec = parse_spec(spec_text);
    if (value.is(Kind::kInt) || value.is(Kind::kFloat) || (value.is(Kind::kBool) && spec.type != 0)) {
      out += format_number(r_, value, spec);
      return;
    }
    if (!value.is_string() && !value.is(Kind::kBool)) {
      r_.fail("unsupported format string passed to {}.__format__", type_name(value));
    }
    if (spec.type != 0 && spec.type != 's')
      r_.fail("Unknown format code '{}' for object of type 'str'", spec.type);
    append_text(out, r_.text(to_str(r_, value)), spec, '<');
  }

  FormatSpec parse_spec(std::string_view text) {
    constexpr std::string_view kAligns = "<>^";
    FormatSpec spec;
    size_t pos = 0;
    next_code_point(text, pos);
    if (pos < text.size() && is_one_of(text[pos], kAligns)) {
      spec.fill = text.substr(0, pos);
      spec.align = text[pos++];
    } else {
      pos = 0;
      if (is_one_of(text[0], kAligns)) spec.align = text[pos++];
    }
    const auto take = [&](std::string_view set) {
      return pos < text.size() && is_one_of(text[pos], set) ? text[pos++] : '\0';
    };
    if (const char sign = take("+- ")) spec.sign = sign;
    spec.alternate = take("#") != 0;
    spec.zero = take("0") != 0;
    spec.width = parse_count(r_, text, pos);
    if (take(".") != 0) spec.precision = parse_count(r_, text, pos);
    if (pos < text.size()) spec.type = text[pos++];
    if (pos < text.size()) r_.fail("Invalid format specifier '{}'", text);
    return spec;
  }

  Datum argument(std::string_view name) {
    if (name.find_first_not_of("0123456789") == std::string_view::npos && name.size() < 10) {
      const bool numbers_itself = name.empty();
      if (numbers_itself ? numbered_ : next_ > 0) {
        r_.fail("cannot switch between automatic field numbering and manual field specification");
      }
      numbered_ = !numbers_itself;
      const int64_t index = name.empty() ? next_++ : std::stoll(std::string(name));
      if (index >= args_.size) r_.fail("Replacement index {} out of range for positional args tuple", index);
      return args_.items[index];
    }
    for (int64_t k = 0; k < args_.num_keywords; ++k) {
      if (args_.keywords[k].name == name) return args_.keywords[k].value;
    }
    if (name.find_first_of(".[") != std::string_view::npos) {
      r_.fail("the field '{}' of a format is not supported: pass the value itself as an argument", name);
    }
    r_.fail("KeyError: '{}'", name);
  }

  Rendering& r_;
  const Arguments& args_;
  int64_t next_ = 0;
  bool numbered_ = false;  // a field had a number of its own
};

}  // namespace

Datum percent_format(Rendering& r, const Datum& format, const Datum& arguments) {
  return PercentFormatter(r, r.text(format), arguments).run().finish(format.markup);
}

Datum brace_format(Rendering& r, std::string_view format, const Arguments& args) {
  return BraceFormatter(r, args).run(format).finish();
}

}  // namespace tessera::jinja
