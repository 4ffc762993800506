// Filters that make text.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>

#include "jinja/filters/functions.h"
#include "jinja/text/number_parsing.h"
#include "jinja/text/unicode_text.h"
#include "jinja/values/operators.h"
#include "jinja/values/python_text.h"

namespace tessera::jinja {
namespace {

// A filter that is a method of the value's text, such as str.upper.
template <size_t N>
Datum call_method(Rendering& r, const Datum& value, const Arguments& args, const char (&name)[N]) {
  return r.call(*find_string_method(name), to_soft_str(r, value), args);
}

Datum capitalize_filter(Rendering& r, const Datum& value, const Arguments& args) {
  return call_method(r, value, args, "capitalize");
}
Datum lower_filter(Rendering& r, const Datum& value, const Arguments& args) {
  return call_method(r, value, args, "lower");
}
Datum upper_filter(Rendering& r, const Datum& value, const Arguments& args) {
  return call_method(r, value, args, "upper");
}

Datum trim(Rendering& r, const Datum& value, const Arguments& args) {
  return call_method(r, value, args, "strip");
}

Datum center(Rendering& r, const Datum& value, const Arguments& args) {
  const Datum width = args.has(0) ? args[0] : integer(80);
  return call_method(r, value, Arguments{&width, 1, nullptr, 0}, "center");
}

Datum escape(Rendering& r, const Datum& value, const Arguments&) {
  if (value.is_string() && value.markup) return value;
  return escape_html(r, to_str(r, value));
}

Datum force_escape(Rendering& r, const Datum& value, const Arguments&) {
  return escape_html(r, to_str(r, value));
}

Datum safe(Rendering& r, const Datum& value, const Arguments&) { return with_markup(to_str(r, value), true); }

Datum to_string_filter(Rendering& r, const Datum& value, const Arguments&) { return to_soft_str(r, value); }

Datum replace(Rendering& r, const Datum& value, const Arguments& args) {
  const std::string_view text = r.text(to_str(r, value));
  const std::string_view from = r.text(to_str(r, args[0]));
  const std::string_view to = r.text(to_str(r, args[1]));
  const int64_t count = args.has(2) && !args[2].is(Kind::kNone) ? to_integer(r, args[2], "replace") : -1;
  if (find_text(text, from) == std::string_view::npos) return string(text);
  return replaced(r, text, from, to, count);
}

Datum title(Rendering& r, const Datum& value, const Arguments&) {
  const Datum text = to_soft_str(r, value);
  TextBuilder out(r);
  const std::string_view bytes = r.text(text);
  // A word begins after spaces and after any of - ( { [ <.
  const auto separates = [](char32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  size_t begin = 0;
  while (begin < bytes.size()) {
    size_t end = begin;
    const bool separator = separates(next_code_point(bytes, end));
    const size_t first_end = end;
    for (size_t next = end; next < bytes.size() && separates(next_code_point(bytes, next)) == separator;)
      end = next;
    out += to_upper(bytes.substr(begin, first_end - begin));
    out += to_lower(bytes.substr(first_end, end - first_end));
    begin = end;
  }
  return r.copy_made_of(bytes, out.text(), text.markup);
}

Datum indent(Rendering& r, const Datum& value, const Arguments& args) {
  const std::string_view text = to_string_argument(r, value, "indent");
  std::string indention(4, ' ');
  if (args.has(0) && args[0].is_string()) {
    indention = r.text(args[0]);
  } else if (args.has(0)) {
    indention.assign(static_cast<size_t>(std::clamp<int64_t>(to_integer(r, args[0], "indent"), 0, 10'000)),
                     ' ');
  }
  const bool indents_blank = args.has(2) && is_true(args[2]);
  const Datum whole = r.concat(string(text), string("\n"));  // so that there is always a last line
  const std::string_view source = r.text(whole);
  TextBuilder out(r);
  if (args.has(1) && is_true(args[1])) out += indention;
  size_t begin = 0;
  for (size_t pos = 0; pos < source.size();) {
    const size_t at = pos;
    if (!take_line_break(source, pos)) continue;
    const std::string_view line = source.substr(begin, at - begin);
    if (begin > 0) {
      out += '\n';
      if (indents_blank || !line.empty()) out += indention;
    }
    out += line;
    begin = pos;
  }
  return out.finish(value.markup);
}

Datum truncate(Rendering& r, const Datum& value, const Arguments& args) {
  const int64_t length = args.has(0) ? to_integer(r, args[0], "truncate") : 255;
  const std::string_view end = args.has(2) ? to_string_argument(r, args[2], "truncate") : "...";
  const int64_t leeway = args.has(3) && !args[3].is(Kind::kNone) ? to_integer(r, args[3], "truncate") : 5;
  const int64_t kept = length - count_code_points(end);
  if (kept < 0) r.fail("expected length >= {}, got {}", count_code_points(end), length);
  if (leeway < 0) r.fail("expected leeway >= 0, got {}", leeway);
  if (const auto size = length_of(r, value); size && *size - leeway <= length) return value;
  const std::string_view text = to_string_argument(r, value, "truncate");
  std::string_view head = text.substr(0, byte_offset(text, kept));
  if (!args.has(1) || !is_true(args[1])) head = head.substr(0, std::min(head.rfind(' '), head.size()));
  return r.concat(string(head), string(end));
}

Datum word_count(Rendering& r, const Datum& value, const Arguments&) {
  const std::string_view text = r.text(to_soft_str(r, value));
  r.step(std::ssize(text) / 4);
  int64_t count = 0;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = next_code_point(text, pos);
    const bool is_word = c == '_' || is_alpha(c) || is_numeric(c);
    count += is_word && !in_word ? 1 : 0;
    in_word = is_word;
  }
  return integer(count);
}

Datum format(Rendering& r, const Datum& value, const Arguments& args) {
  if (args.size > 0 && args.num_keywords > 0) {
    r.fail("can't handle positional and keyword arguments at the same time");
  }
  if (args.num_keywords == 0) {
    return percent_format(r, to_soft_str(r, value),
                          sequence(r.make(List{args.items, args.size}), Kind::kTuple));
  }
  Entry* entries = r.array<Entry>(args.num_keywords);
  for (int64_t k = 0; k < args.num_keywords; ++k) {
    entries[k] = {string(args.keywords[k].name), args.keywords[k].value};
  }
  return percent_format(r, to_soft_str(r, value), dictionary(r.make(Dict{entries, args.num_keywords})));
}

Datum file_size_format(Rendering& r, const Datum& value, const Arguments& args) {
  static constexpr std::string_view kPrefixes = "kMGTPEZY";
  const bool binary = args.has(0) && is_true(args[0]);
  const auto parsed = value.is_string() ? parse_float(r.text(value)) : std::nullopt;
  if (!parsed && !value.is_number())
    r.fail("filesizeformat: expected a number, found {}", object_name(value));
  const double bytes = parsed ? *parsed : value.as_double();
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return string("1 Byte");
  if (bytes < base) return r.copy_string(fmt::format("{:.0f} Bytes", std::trunc(bytes)));
  double unit = base * base;
  size_t i = 0;
  while (bytes >= unit && i + 1 < kPrefixes.size()) {
    unit *= base;
    ++i;
  }
  const char prefix = binary && i == 0 ? 'K' : kPrefixes[i];
  return r.copy_string(fmt::format("{:.1f} {}{}", base * bytes / unit, prefix, binary ? "iB" : "B"));
}

// Percent-encodes all but letters, digits and _.-~ and, in paths, slashes.
void append_url_quoted(TextBuilder& out, std::string_view text, bool in_query) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x80 && std::isalnum(byte) != 0) ||
        std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !in_query)) {
      out += c;
    } else if (c == ' ' && in_query) {
      out += '+';
    } else {
      constexpr std::string_view kDigits = "0123456789ABCDEF";
      out += '%';
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
}

Datum url_encode(Rendering& r, const Datum& value, const Arguments&) {
  TextBuilder out(r);
  if (value.is_string() || !is_iterable(value)) {
    append_url_quoted(out, r.text(to_str(r, value)), false);
    return r.copy_string(out.text());
  }
  const auto append = [&](const Datum& key, const Datum& item) {
    if (!out.empty()) out += '&';
    append_url_quoted(out, r.text(to_str(r, key)), true);
    out += '=';
    append_url_quoted(out, r.text(to_str(r, item)), true);
  };
  if (is_mapping(value)) {
    for (int64_t i = 0; i < *size_of(value); ++i) {
      const Entry entry = dict_entry(r, value, i);
      append(entry.key, entry.value);
    }
    return r.copy_string(out.text());
  }
  const Datum items = to_list(r, value);
  for (int64_t i = 0; i < items.list->size; ++i) {
    const Datum pair = to_list(r, items.list->items[i]);
    if (pair.list->size != 2) r.fail("urlencode: expected pairs of key and value");
    append(pair.list->items[0], pair.list->items[1]);
  }
  return r.copy_string(out.text());
}

Datum xml_attributes(Rendering& r, const Datum& value, const Arguments& args) {
  if (!is_mapping(value)) r.fail("xmlattr: expected a dict, found {}", object_name(value));
  const Arguments nothing;
  TextBuilder out(r);
  for (int64_t i = 0; i < *size_of(value); ++i) {
    const Entry entry = dict_entry(r, value, i);
    if (entry.value.is(Kind::kNone) || entry.value.is_undefined()) continue;
    const std::string_view key = to_string_argument(r, entry.key, "xmlattr");
    if (key.find_first_of(" \t\n\r\f\v/>=") != std::string_view::npos) {
      TextBuilder name(r);
      append_quoted(name, key);
      r.fail("Invalid character in attribute name: {}", name.text());
    }
    if (!out.empty() || !args.has(0) || is_true(args[0])) out += ' ';
    append_escaped(out, key);
    out += "=\"";
    out += r.text(escape(r, entry.value, nothing));
    out += '"';
  }
  return out.finish();
}

Datum to_json(Rendering& r, const Datum& value, const Arguments& args) {
  JsonStyle style;
  style.ensure_ascii = args.has(0) && is_true(args[0]);
  style.sort_keys = args.has(3) && is_true(args[3]);
  if (args.has(1) && !args[1].is(Kind::kNone)) {
    style.has_indent = true;
    style.item_separator = ",";
    if (args[1].is_string()) {
      style.indent = r.text(args[1]);
    } else {
      style.indent.assign(static_cast<size_t>(std::clamp<int64_t>(to_integer(r, args[1], "tojson"), 0, 1000)),
                          ' ');
    }
  }
  if (args.has(2) && !args[2].is(Kind::kNone)) {
    const Datum separators = to_list(r, args[2]);
    if (separators.list->size != 2)
      r.fail("tojson: expected two separators, found {}", separators.list->size);
    style.item_separator = to_string_argument(r, separators.list->items[0], "tojson");
    style.key_separator = to_string_argument(r, separators.list->items[1], "tojson");
  }
  TextBuilder out(r);
  append_json(r, out, value, style);
  return out.finish();
}

constexpr FunctionEntry kTextFilters[] = {
    {"capitalize", capitalize_filter},
    {"center", center, "[width]"},
    {"e", escape},
    {"escape", escape},
    {"filesizeformat", file_size_format, "[binary]"},
    {"forceescape", force_escape},
    {"format", format, "*"},
    {"indent", indent, "[width first blank]"},
    {"lower", lower_filter},
    {"replace", replace, "old new [count]"},
    {"safe", safe},
    {"string", to_string_filter},
    {"title", title},
    {"tojson", to_json, "[ensure_ascii indent separators sort_keys]"},
    {"trim", trim, "[chars]"},
    {"truncate", truncate, "[length killwords end leeway]"},
    {"upper", upper_filter},
    {"urlencode", url_encode},
    {"wordcount", word_count},
    {"xmlattr", xml_attributes, "[autospace]"},
};

}  // namespace

FunctionTable text_filters() { return kTextFilters; }

}  // namespace tessera::jinja
