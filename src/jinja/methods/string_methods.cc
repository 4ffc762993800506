// The methods of Python's str.
#include <algorithm>
#include <string>

#include "base/text.h"
#include "jinja/methods/methods.h"
#include "jinja/text/unicode_text.h"
#include "jinja/values/operators.h"
#include "jinja/values/python_text.h"

namespace tessera::jinja {
namespace {

Datum made(Rendering& r, const Datum& self, std::string_view text) {
  return r.copy_made_of(r.text(self), text, self.markup);
}
Datum shared(const Datum& self, std::string_view text) { return string(text, self.markup); }

// Refuses what more than `count` characters of `bytes` each would take.
void limit(Rendering& r, int64_t count, size_t bytes = 1) {
  if (count > r.options.max_output_bytes / static_cast<int64_t>(bytes))
    r.fail("a string of more than {}", format_bytes(r.options.max_output_bytes));
}

// A string argument; Markup escapes what it takes in.
std::string_view text_argument(Rendering& r, const Datum& self, const Datum& value,
                               std::string_view function) {
  const std::string_view text = to_string_argument(r, value, function);
  return self.markup && !value.markup ? r.text(escape_html(r, value)) : text;
}

// Mapping a byte takes 1 / kBytes of a step.
template <std::string (*Map)(std::string_view), int64_t kBytes = 8>
Datum mapped(Rendering& r, const Datum& self, const Arguments&) {
  r.step(self.size / kBytes);
  return made(r, self, Map(r.text(self)));
}

template <Side kSide>
Datum stripped(Rendering& r, const Datum& self, const Arguments& args) {
  if (!args.has(0) || args[0].is(Kind::kNone)) return shared(self, strip(r.text(self), kSide));
  const std::string_view characters = to_string_argument(r, args[0], "strip");
  r.step(self.size / 4 + std::ssize(characters));  // sorts them, and looks each character up
  return shared(self, strip(r.text(self), characters, kSide));
}

// True if there is a character and all have the property.
template <bool (*Has)(char32_t)>
Datum all_are(Rendering& r, const Datum& self, const Arguments&) {
  r.step(self.size / 4);  // a look into Unicode's tables for each character
  const std::string_view text = r.text(self);
  bool all = !text.empty();
  for (size_t pos = 0; all && pos < text.size();) all = Has(next_code_point(text, pos));
  return boolean(all);
}

bool is_alnum(char32_t c) { return is_alpha(c) || is_numeric(c); }

// islower, isupper: there is a cased character, and all are of the one case.
template <bool (*Is)(char32_t), bool (*IsOther)(char32_t)>
Datum all_cased(Rendering& r, const Datum& self, const Arguments&) {
  r.step(self.size / 4);
  bool found = false;
  const std::string_view text = r.text(self);
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = next_code_point(text, pos);
    if (IsOther(c) || is_title_case(c)) return boolean(false);
    found = found || Is(c);
  }
  return boolean(found);
}

Datum is_title(Rendering& r, const Datum& self, const Arguments&) {
  r.step(self.size / 4);
  bool found = false, in_word = false;
  const std::string_view text = r.text(self);
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = next_code_point(text, pos);
    const bool starts = is_upper_case(c) || is_title_case(c);
    if ((starts && in_word) || (is_lower_case(c) && !in_word)) return boolean(false);
    in_word = starts || is_lower_case(c);
    found = found || in_word;
  }
  return boolean(found);
}

Datum is_ascii_method(Rendering& r, const Datum& self, const Arguments&) {
  return boolean(is_ascii(r.text(self)));
}

Datum is_printable_method(Rendering& r, const Datum& self, const Arguments& args) {
  if (self.size == 0) return boolean(true);
  return all_are<is_printable>(r, self, args);
}

Datum is_identifier(Rendering& r, const Datum& self, const Arguments&) {
  r.step(self.size / 4);
  const std::string_view text = r.text(self);
  bool is = !text.empty();
  for (size_t pos = 0; is && pos < text.size();) {
    const bool first = pos == 0;
    const char32_t c = next_code_point(text, pos);
    is = first ? is_identifier_start(c) : is_identifier_part(c);
  }
  return boolean(is);
}

// The part of a string that start and end (arguments 1 and 2) select.
struct Window {
  std::string_view text;
  int64_t start;  // characters before it
  bool valid;     // false if start is past the end
};

Window window(Rendering& r, const Datum& self, const Datum& start, const Datum& end) {
  const auto given = [](const Datum& d) { return !d.is_missing() && !d.is(Kind::kNone); };
  const std::string_view text = r.text(self);
  if (!given(start) && !given(end)) return {text, 0, true};
  const bool ascii = is_ascii(text);
  const int64_t size = ascii ? self.size : count_code_points(text);
  const auto index = [&](const Datum& d, int64_t otherwise) {
    if (!given(d)) return otherwise;
    const int64_t value = std::clamp<int64_t>(to_integer(r, d, "str"), -size - 1, size + 1);
    return value < 0 ? std::max<int64_t>(0, value + size) : value;
  };
  const int64_t first = index(start, 0);
  const int64_t last = std::min(index(end, size), size);
  if (first > last) return {{}, first, false};
  const auto offset = [&](int64_t at) { return ascii ? static_cast<size_t>(at) : byte_offset(text, at); };
  return {text.substr(offset(first), offset(last) - offset(first)), first, true};
}

// -1 if it is not found.
int64_t position(Rendering& r, const Datum& self, const Arguments& args, bool from_right) {
  const std::string_view sub = to_string_argument(r, args[0], "find");
  const Window in = window(r, self, args[1], args[2]);
  const size_t at = !in.valid    ? std::string_view::npos
                    : from_right ? ReverseSearch(r, in.text, sub).next()
                                 : find_text(in.text, sub);
  if (at == std::string_view::npos) return -1;
  return in.start + count_code_points(in.text.substr(0, at));
}

template <bool kFromRight>
Datum find(Rendering& r, const Datum& self, const Arguments& args) {
  return integer(position(r, self, args, kFromRight));
}

template <bool kFromRight>
Datum index(Rendering& r, const Datum& self, const Arguments& args) {
  const int64_t at = position(r, self, args, kFromRight);
  if (at < 0) r.fail("substring not found");
  return integer(at);
}

Datum count(Rendering& r, const Datum& self, const Arguments& args) {
  const std::string_view sub = to_string_argument(r, args[0], "count");
  const Window in = window(r, self, args[1], args[2]);
  if (!in.valid) return integer(0);
  if (sub.empty()) return integer(count_code_points(in.text) + 1);
  int64_t found = 0;
  for (size_t at = 0; (at = find_text(in.text, sub, at)) != std::string_view::npos; at += sub.size()) {
    r.step();
    ++found;
  }
  return integer(found);
}

template <bool kAtEnd>
Datum starts_or_ends_with(Rendering& r, const Datum& self, const Arguments& args) {
  constexpr const char* kName = kAtEnd ? "endswith" : "startswith";
  const bool is_tuple = args[0].is(Kind::kTuple);
  if (!args[0].is_string() && !is_tuple) {
    r.fail("{} first arg must be str or a tuple of str, not {}", kName, type_name(args[0]));
  }
  const Window in = window(r, self, args[1], args[2]);
  const auto matches = [&](const Datum& d) {
    r.step();
    const std::string_view text = to_string_argument(r, d, kName);
    return in.valid && (kAtEnd ? in.text.ends_with(text) : in.text.starts_with(text));
  };
  if (!is_tuple) return boolean(matches(args[0]));
  return boolean(std::any_of(args[0].list->items, args[0].list->items + args[0].list->size, matches));
}

Datum replace_method(Rendering& r, const Datum& self, const Arguments& args) {
  const std::string_view from = text_argument(r, self, args[0], "replace");
  const std::string_view to = text_argument(r, self, args[1], "replace");
  int64_t left = args.has(2) ? to_integer(r, args[2], "replace") : -1;
  if (find_text(r.text(self), from) == std::string_view::npos) return self;
  return replaced(r, r.text(self), from, to, left, self.markup);
}

Datum split_at_space(Rendering& r, const Datum& self, int64_t left) {
  ListBuilder parts(r);
  std::string_view rest = strip(r.text(self), Side::kLeft);
  while (!rest.empty()) {
    if (left-- == 0) {
      parts.push(shared(self, rest));
      break;
    }
    size_t end = 0;
    for (size_t next = 0; next < rest.size(); end = next) {
      if (is_space(next_code_point(rest, next))) break;
    }
    parts.push(shared(self, rest.substr(0, end)));
    rest = strip(rest.substr(end), Side::kLeft);
  }
  return parts.finish();
}

Datum reverse_split_at_space(Rendering& r, const Datum& self, int64_t left) {
  std::vector<Datum> parts;
  std::string_view rest = strip(r.text(self), Side::kRight);
  while (!rest.empty()) {
    if (left-- == 0) {
      parts.push_back(shared(self, rest));
      break;
    }
    size_t begin = 0;
    for (size_t pos = 0; pos < rest.size();) {
      if (is_space(next_code_point(rest, pos))) begin = pos;
    }
    r.step_bytes(static_cast<int64_t>(rest.size()));
    parts.push_back(shared(self, rest.substr(begin)));
    rest = strip(rest.substr(0, begin), Side::kRight);
  }
  std::reverse(parts.begin(), parts.end());
  return r.make_list(parts);
}

template <bool kFromRight>
Datum split(Rendering& r, const Datum& self, const Arguments& args) {
  int64_t left = args.has(1) ? to_integer(r, args[1], "split") : -1;
  if (!args.has(0) || args[0].is(Kind::kNone)) {
    return kFromRight && left >= 0 ? reverse_split_at_space(r, self, left) : split_at_space(r, self, left);
  }
  const std::string_view separator = to_string_argument(r, args[0], "split");
  if (separator.empty()) r.fail("empty separator");
  std::string_view rest = r.text(self);
  if (kFromRight && left >= 0) {
    std::vector<Datum> parts;
    ReverseSearch search(r, rest, separator);
    for (size_t at = search.next(); at != std::string_view::npos && left-- > 0; at = search.next()) {
      r.step();
      parts.push_back(shared(self, rest.substr(at + separator.size())));
      rest = rest.substr(0, at);
    }
    parts.push_back(shared(self, rest));
    std::reverse(parts.begin(), parts.end());
    return r.make_list(parts);
  }
  ListBuilder parts(r);
  for (size_t at = find_text(rest, separator); at != std::string_view::npos && left-- != 0;
       at = find_text(rest, separator)) {
    r.step();
    parts.push(shared(self, rest.substr(0, at)));
    rest = rest.substr(at + separator.size());
  }
  parts.push(shared(self, rest));
  return parts.finish();
}

Datum split_lines(Rendering& r, const Datum& self, const Arguments& args) {
  const bool keep = args.has(0) && is_true(args[0]);
  ListBuilder lines(r);
  const std::string_view text = r.text(self);
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    if (!take_line_break(text, pos)) continue;
    lines.push(shared(self, text.substr(begin, (keep ? pos : at) - begin)));
    begin = pos;
  }
  if (begin < text.size()) lines.push(shared(self, text.substr(begin)));
  return lines.finish();
}

template <bool kFromRight>
Datum partition(Rendering& r, const Datum& self, const Arguments& args) {
  const std::string_view separator = to_string_argument(r, args[0], "partition");
  if (separator.empty()) r.fail("empty separator");
  const std::string_view text = r.text(self);
  const size_t at = kFromRight ? ReverseSearch(r, text, separator).next() : find_text(text, separator);
  const Datum empty = shared(self, {});
  if (at == std::string_view::npos) {
    return r.make_list(
        kFromRight ? std::vector<Datum>{empty, empty, self} : std::vector<Datum>{self, empty, empty},
        Kind::kTuple);
  }
  return r.make_list({shared(self, text.substr(0, at)), shared(self, text.substr(at, separator.size())),
                      shared(self, text.substr(at + separator.size()))},
                     Kind::kTuple);
}

Datum join_method(Rendering& r, const Datum& self, const Arguments& args) {
  const Datum items = to_list(r, args[0]);
  TextBuilder out(r);
  for (int64_t i = 0; i < items.list->size; ++i) {
    const Datum& item = items.list->items[i];
    if (!item.is_string()) {
      r.fail("sequence item {}: expected str instance, {} found", i, type_name(item));
    }
    if (i > 0) out += r.text(self);
    out += text_argument(r, self, item, "join");
  }
  return out.finish(self.markup);
}

template <bool kAtEnd>
Datum remove_affix(Rendering& r, const Datum& self, const Arguments& args) {
  const std::string_view affix = to_string_argument(r, args[0], "removeprefix");
  std::string_view text = r.text(self);
  if (kAtEnd ? text.ends_with(affix) : text.starts_with(affix)) {
    text = kAtEnd ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size());
  }
  return shared(self, text);
}

enum class Align { kLeft, kCenter, kRight };

template <Align kAlign>
Datum justify(Rendering& r, const Datum& self, const Arguments& args) {
  const std::string_view fill = args.has(1) ? to_string_argument(r, args[1], "justify") : " ";
  if (count_code_points(fill) != 1) r.fail("The fill character must be exactly one character long");
  const int64_t width = to_integer(r, args[0], "justify");
  const int64_t size = *length_of(r, self);
  if (width <= size) return self;
  const int64_t missing = width - size;
  limit(r, missing, fill.size());
  const int64_t before = kAlign == Align::kLeft    ? 0
                         : kAlign == Align::kRight ? missing
                                                   : missing / 2 + (missing & width & 1);
  TextBuilder out(r);
  for (int64_t i = 0; i < before; ++i) out += fill;
  out += r.text(self);
  for (int64_t i = before; i < missing; ++i) out += fill;
  return out.finish(self.markup);
}

Datum zero_fill(Rendering& r, const Datum& self, const Arguments& args) {
  const int64_t width = to_integer(r, args[0], "zfill");
  const std::string_view text = r.text(self);
  const int64_t size = count_code_points(text);
  if (width <= size) return self;
  const int64_t missing = width - size;
  limit(r, missing);
  const size_t sign = !text.empty() && (text[0] == '+' || text[0] == '-') ? 1 : 0;
  TextBuilder out(r);
  out += text.substr(0, sign);
  out += std::string(static_cast<size_t>(missing), '0');
  out += text.substr(sign);
  return out.finish(self.markup);
}

Datum expand_tabs(Rendering& r, const Datum& self, const Arguments& args) {
  const int64_t size = args.has(0) ? to_integer(r, args[0], "expandtabs") : 8;
  TextBuilder out(r);
  int64_t column = 0;
  const std::string_view text = r.text(self);
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = next_code_point(text, pos);
    if (c == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      limit(r, spaces);
      out += std::string(static_cast<size_t>(spaces), ' ');
      column += spaces;
    } else {
      out += text.substr(begin, pos - begin);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return out.finish(self.markup);
}

Datum format_method(Rendering& r, const Datum& self, const Arguments& args) {
  const Datum text = brace_format(r, r.text(self), args);
  return with_markup(text, self.markup);
}

constexpr FunctionEntry kMethods[] = {
    {"capitalize", mapped<capitalize>},
    {"casefold", mapped<case_fold>},
    {"center", justify<Align::kCenter>, "width [fillchar]"},
    {"count", count, "sub [start end]"},
    {"endswith", starts_or_ends_with<true>, "sub [start end]"},
    {"expandtabs", expand_tabs, "[tabsize]"},
    {"find", find<false>, "sub [start end]"},
    {"format", format_method, "*"},
    {"index", index<false>, "sub [start end]"},
    {"isalnum", all_are<is_alnum>},
    {"isalpha", all_are<is_alpha>},
    {"isascii", is_ascii_method},
    {"isdecimal", all_are<is_decimal>},
    {"isdigit", all_are<is_digit_character>},
    {"isidentifier", is_identifier},
    {"islower", all_cased<is_lower_case, is_upper_case>},
    {"isnumeric", all_are<is_numeric>},
    {"isprintable", is_printable_method},
    {"isspace", all_are<is_space>},
    {"istitle", is_title},
    {"isupper", all_cased<is_upper_case, is_lower_case>},
    {"join", join_method, "iterable"},
    {"ljust", justify<Align::kLeft>, "width [fillchar]"},
    {"lower", mapped<to_lower>},
    {"lstrip", stripped<Side::kLeft>, "[chars]"},
    {"partition", partition<false>, "sep"},
    {"removeprefix", remove_affix<false>, "affix"},
    {"removesuffix", remove_affix<true>, "affix"},
    {"replace", replace_method, "old new [count]"},
    {"rfind", find<true>, "sub [start end]"},
    {"rindex", index<true>, "sub [start end]"},
    {"rjust", justify<Align::kRight>, "width [fillchar]"},
    {"rpartition", partition<true>, "sep"},
    {"rsplit", split<true>, "[sep maxsplit]"},
    {"rstrip", stripped<Side::kRight>, "[chars]"},
    {"split", split<false>, "[sep maxsplit]"},
    {"splitlines", split_lines, "[keepends]"},
    {"startswith", starts_or_ends_with<false>, "sub [start end]"},
    {"strip", stripped<Side::kBoth>, "[chars]"},
    {"swapcase", mapped<swap_case, 1>},
    {"title", mapped<to_title, 1>},
    {"upper", mapped<to_upper>},
    {"zfill", zero_fill, "width"},
};

}  // namespace

const FunctionEntry* find_string_method(std::string_view name) { return find_function(kMethods, name); }

}  // namespace tessera::jinja
