// The % operator of strings, and str.format, as far as prompts have reason to use them: text as it is, and
// numbers with [0][width][.precision] and the type d, i or f.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>

#include "jinja/values/operators.h"
#include "jinja/values/python_text.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMaxWidth = 100;

// [0][width][.precision]
struct NumberFormat {
  bool zero = false;
  int64_t width = 0;
  int64_t precision = -1;
};

int64_t parse_count(Rendering& r, std::string_view text, size_t& pos) {
  int64_t value = 0;
  for (; pos < text.size() && std::isdigit(static_cast<unsigned char>(text[pos])) != 0; ++pos) {
    value = 10 * value + (text[pos] - '0');
    if (value > kMaxWidth) r.fail("a width or precision of more than {} in a format", kMaxWidth);
  }
  return value;
}

NumberFormat parse_number_format(Rendering& r, std::string_view text, size_t& pos) {
  NumberFormat format;
  if (pos < text.size() && text[pos] == '0') format.zero = true;
  format.width = parse_count(r, text, pos);
  if (pos < text.size() && text[pos] == '.') format.precision = parse_count(r, text, ++pos);
  return format;
}

std::string format_number(Rendering& r, const Datum& value, const NumberFormat& format, char type) {
  if (value.is_undefined()) r.fail_undefined(value);
  if (!value.is_number()) {
    r.fail("%{} format: a {} number is required, not {}", type, type == 'd' ? "integer" : "real",
           type_name(value));
  }
  const char* zero = format.zero ? "0" : "";
  if (type == 'f') {
    const int64_t digits = format.precision < 0 ? 6 : format.precision;
    const std::string form = fmt::format("{{:{}{}.{}f}}", zero, format.width, digits);
    return fmt::format(fmt::runtime(form), value.as_double());
  }
  if (format.precision >= 0) r.fail("a precision in the format of an integer is not supported");
  if (value.is(Kind::kFloat) && !(std::abs(value.number) < 9.2e18))
    r.fail("the number {} does not fit in 64 bits", format_float(value.number));
  const int64_t whole = value.is(Kind::kFloat) ? static_cast<int64_t>(value.number) : value.integer;
  return fmt::format(fmt::runtime(fmt::format("{{:{}{}d}}", zero, format.width)), whole);
}

class PercentFormatter {
 public:
  PercentFormatter(Rendering& r, std::string_view format, const Datum& arguments)
      : r_(r), format_(format), arguments_(arguments), is_tuple_(arguments.is(Kind::kTuple)) {}

  TextBuilder run() {
    while (pos_ < format_.size()) {
      const size_t percent = std::min(format_.find('%', pos_), format_.size());
      out_ += format_.substr(pos_, percent - pos_);
      pos_ = percent + 1;
      if (percent < format_.size()) directive();
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

  // %[(key)][format]type
  void directive() {
    r_.step();
    if (peek() == '%') {
      ++pos_;
      out_ += '%';
      return;
    }
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
    const size_t begin = pos_;
    const NumberFormat format = parse_number_format(r_, format_, pos_);
    const bool is_plain = pos_ == begin;
    const char type = peek() == 'i' ? 'd' : peek();
    ++pos_;
    if (value.is_missing()) value = next_argument();
    if (type == 'd' || type == 'f') {
      out_ += format_number(r_, value, format, type);
    } else if (type == 's' && is_plain) {
      append_str(r_, out_, value);
    } else if (type == 'r' && is_plain) {
      append_repr(r_, out_, value);
    } else {
      r_.fail("the format '%{}' is not supported: expected %s, %r, or %d and %f with a width",
              format_.substr(begin, pos_ - begin));
    }
  }

  Rendering& r_;
  std::string_view format_;
  const Datum& arguments_;
  const bool is_tuple_;
  size_t pos_ = 0;
  int64_t used_ = 0;
  TextBuilder out_{r_};
};

// Fields are {}, {0} or {name}, with a format of numbers: {:.2f}.
class BraceFormatter {
 public:
  BraceFormatter(Rendering& r, const Arguments& args) : r_(r), args_(args) {}

  TextBuilder run(std::string_view format) {
    TextBuilder out(r_);
    for (size_t pos = 0; pos < format.size();) {
      const size_t brace = std::min(format.find_first_of("{}", pos), format.size());
      out += format.substr(pos, brace - pos);
      if (brace == format.size()) break;
      const char c = format[brace];
      if (brace + 1 < format.size() && format[brace + 1] == c) {
        out += c;
        pos = brace + 2;
        continue;
      }
      if (c == '}') r_.fail("Single '}}' encountered in format string");
      const size_t end = format.find('}', brace);
      if (end == std::string_view::npos) r_.fail("expected '}}' before end of string");
      append_field(out, format.substr(brace + 1, end - brace - 1));
      pos = end + 1;
    }
    return out;
  }

 private:
  void append_field(TextBuilder& out, std::string_view text) {
    r_.step();
    const size_t colon = text.find(':');
    const Datum value = argument(text.substr(0, colon), text);
    if (colon == std::string_view::npos) return append_str(r_, out, value);
    size_t pos = colon + 1;
    const NumberFormat format = parse_number_format(r_, text, pos);
    const std::string_view type = text.substr(pos);
    if (type != "d" && type != "f") refuse(text);
    out += format_number(r_, value, format, type[0]);
  }

  [[noreturn]] void refuse(std::string_view field) const {
    r_.fail(
        "the field '{{{}}}' of a format is not supported: expected {{}}, {{0}} or {{name}}, as it is or "
        "with a format such as .2f or 03d",
        field);
  }

  Datum argument(std::string_view name, std::string_view field) {
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
    if (name.find_first_of(".[!{") != std::string_view::npos) refuse(field);
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
