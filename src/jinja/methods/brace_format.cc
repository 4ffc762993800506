// str.format: fields with attributes and elements of arguments, and fields within specifications.
#include <algorithm>
#include <string>

#include "jinja/methods/methods.h"
#include "jinja/values/python_text.h"

namespace tessera::jinja {
namespace {

class BraceFormatter {
 public:
  BraceFormatter(Rendering& r, const Arguments& args) : r_(r), args_(args) {}

  TextBuilder run(std::string_view format, int depth = 0) {
    if (depth > 2) r_.fail("Max string recursion exceeded");
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
        const size_t end = closing(format, pos + 1);
        out += field(format.substr(pos + 1, end - pos - 1), depth);
        pos = end;
      } else {
        out += format.substr(pos, 1);
      }
    }
    return out;
  }

 private:
  size_t closing(std::string_view format, size_t pos) const {
    for (int open = 1; pos < format.size(); ++pos) {
      if (format[pos] == '{') ++open;
      if (format[pos] == '}' && --open == 0) return pos;
    }
    r_.fail("expected '}}' before end of string");
  }

  // name!r:spec
  TextBuilder field(std::string_view text, int depth) {
    r_.step();
    size_t name_end = std::min(text.find_first_of("!:"), text.size());
    std::string_view name = text.substr(0, name_end);
    char conversion = 0;
    if (name_end < text.size() && text[name_end] == '!') {
      if (name_end + 1 >= text.size()) r_.fail("end of string while looking for conversion specifier");
      conversion = text[name_end + 1];
      name_end += 2;
      if (name_end < text.size() && text[name_end] != ':') r_.fail("expected ':' after conversion specifier");
    }
    const Datum value = lookup(name);  // before fields within the specification take their numbers
    const std::string spec = name_end < text.size() ? run(text.substr(name_end + 1), depth + 1).text() : "";
    if (conversion == 0) return format_value(r_, value, spec);
    TextBuilder converted(r_);
    if (conversion == 's') {
      append_str(r_, converted, value);
    } else if (conversion == 'r' || conversion == 'a') {
      append_repr(r_, converted, value);
    } else {
      r_.fail("Unknown conversion specifier {}", conversion);
    }
    return format_value(r_, converted.finish(), spec);
  }

  // first.attribute[item]
  Datum lookup(std::string_view name) {
    size_t pos = std::min(name.find_first_of(".["), name.size());
    Datum value = argument(name.substr(0, pos));
    while (pos < name.size()) {
      const bool is_item = name[pos] == '[';
      const size_t end =
          is_item ? name.find(']', pos) : std::min(name.find_first_of(".[", pos + 1), name.size());
      if (end == std::string_view::npos) r_.fail("Missing ']' in format string");
      const std::string_view part = name.substr(pos + 1, end - pos - 1);
      if (part.empty()) r_.fail("Empty attribute in format string");
      const bool is_index =
          is_item && part.find_first_not_of("0123456789") == std::string_view::npos && part.size() < 18;
      value = !is_item   ? get_attribute(r_, value, part)
              : is_index ? get_item(r_, value, integer(std::stoll(std::string(part))))
                         : get_item(r_, value, string(part));
      pos = is_item ? end + 1 : end;
    }
    return value;
  }

  Datum argument(std::string_view name) {
    const bool is_index = name.find_first_not_of("0123456789") == std::string_view::npos && name.size() < 10;
    if (is_index) {
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
    r_.fail("KeyError: '{}'", name);
  }

  Rendering& r_;
  const Arguments& args_;
  int64_t next_ = 0;
  bool numbered_ = false;  // a field had a number of its own
};

}  // namespace

Datum brace_format(Rendering& r, std::string_view format, const Arguments& args) {
  return BraceFormatter(r, args).run(format).finish();
}

}  // namespace tessera::jinja
