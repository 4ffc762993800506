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

// The part of a string that start and end (arguments 1 and 2) select.
struct Window {
  std::string_view text;
  int64_t start;  // characters before it
  bool valid;     // false where start lies behind the end
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

Datum replace(Rendering& r, const Datum& self, const Arguments& args) {
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

Datum join(Rendering& r, const Datum& self, const Arguments& args) {
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

Datum format(Rendering& r, const Datum& self, const Arguments& args) {
  const Datum text = brace_format(r, r.text(self), args);
  return with_markup(text, self.markup);
}

constexpr FunctionEntry kMethods[] = {
    {"capitalize", mapped<capitalize>},
    {"count", count, "sub [start end]"},
    {"endswith", starts_or_ends_with<true>, "sub [start end]"},
    {"find", find<false>, "sub [start end]"},
    {"format", format, "*"},
    {"index", index<false>, "sub [start end]"},
    {"isalnum", all_are<is_alnum>},
    {"isalpha", all_are<is_alpha>},
    {"isdigit", all_are<is_digit_character>},
    {"isspace", all_are<is_space>},
    {"join", join, "iterable"},
    {"lower", mapped<to_lower>},
    {"lstrip", stripped<Side::kLeft>, "[chars]"},
    {"partition", partition<false>, "sep"},
    {"removeprefix", remove_affix<false>, "affix"},
    {"removesuffix", remove_affix<true>, "affix"},
    {"replace", replace, "old new [count]"},
    {"rfind", find<true>, "sub [start end]"},
    {"rindex", index<true>, "sub [start end]"},
    {"rpartition", partition<true>, "sep"},
    {"rsplit", split<true>, "[sep maxsplit]"},
    {"rstrip", stripped<Side::kRight>, "[chars]"},
    {"split", split<false>, "[sep maxsplit]"},
    {"splitlines", split_lines, "[keepends]"},
    {"startswith", starts_or_ends_with<false>, "sub [start end]"},
    {"strip", stripped<Side::kBoth>, "[chars]"},
    {"title", mapped<to_title, 1>},
    {"upper", mapped<to_upper>},
};

}  // namespace

const FunctionEntry* find_string_method(std::string_view name) { return find_function(kMethods, name); }

// Layout, and questions about characters that no chat asks.
bool is_unsupported_string_method(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "casefold",     "center",  "encode",    "expandtabs",  "format_map", "isascii", "isdecimal",
      "isidentifier", "islower", "isnumeric", "isprintable", "istitle",    "isupper", "ljust",
      "maketrans",    "rjust",   "swapcase",  "translate",   "zfill"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace tessera::jinja
