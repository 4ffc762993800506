// Filters that make text.
#include <algorithm>
#include <string>

#include "jinja/filters/functions.h"
#include "jinja/text/unicode_text.h"
#include "jinja/values/operators.h"
#include "jinja/values/python_text.h"

namespace tessera::jinja {
namespace {

// A filter that is a method of the value's text: str.upper and the like.
template <size_t N>
Datum call_method(Rendering& r, const Datum& value, const Arguments& args, const char (&name)[N]) {
  return r.call(*find_string_method(name), to_soft_str(r, value), args);
}

Datum capitalize_filter(Rendering& r, const Datum& value, const Arguments& args) {
  return call_method(r, value, args, "capitalize");
}
Datum lower(Rendering& r, const Datum& value, const Arguments& args) {
  return call_method(r, value, args, "lower");
}
Datum upper(Rendering& r, const Datum& value, const Arguments& args) {
  return call_method(r, value, args, "upper");
}

Datum trim(Rendering& r, const Datum& value, const Arguments& args) {
  return call_method(r, value, args, "strip");
}

Datum escape(Rendering& r, const Datum& value, const Arguments&) {
  if (value.is_string() && value.markup) return value;
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
    {"e", escape},
    {"escape", escape},
    {"format", format, "*"},
    {"indent", indent, "[width first blank]"},
    {"lower", lower},
    {"replace", replace, "old new [count]"},
    {"safe", safe},
    {"string", to_string_filter},
    {"title", title},
    {"tojson", to_json, "[ensure_ascii indent separators sort_keys]"},
    {"trim", trim, "[chars]"},
    {"upper", upper},
};

}  // namespace

FunctionTable text_filters() { return kTextFilters; }

}  // namespace tessera::jinja
