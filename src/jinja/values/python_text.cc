#include "jinja/values/python_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "jinja/text/unicode_text.h"
#include "jinja/values/operators.h"

namespace tessera::jinja {
namespace {

void append_items(Rendering& r, TextBuilder& out, const Datum& list) {
  const int64_t size = *size_of(list);
  for (int64_t i = 0; i < size; ++i) {
    if (i > 0) out += ", ";
    append_repr(r, out, list_item(r, list, i));
  }
}

void append_dict(Rendering& r, TextBuilder& out, const Datum& dict) {
  out += '{';
  for (int64_t i = 0; i < *size_of(dict); ++i) {
    if (i > 0) out += ", ";
    const Entry entry = dict_entry(r, dict, i);
    append_repr(r, out, entry.key);
    out += ": ";
    append_repr(r, out, entry.value);
  }
  out += '}';
}

void append_json_string(TextBuilder& out, std::string_view text, bool ensure_ascii) {
  constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
  constexpr std::string_view kLetters = "\"\\nrtfb";
  out += '"';
  size_t plain = 0;  // where the characters begin that are copied as they are
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = next_code_point(text, pos);
    if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7F || !ensure_ascii)) continue;
    if (plain < begin) out.append(text.substr(plain, begin - plain));
    plain = pos;
    if (const size_t at = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
        at != std::string_view::npos) {
      out += '\\';
      out += kLetters[at];
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      const auto rest = static_cast<uint32_t>(c) - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    }
  }
  if (plain < text.size()) out.append(text.substr(plain));
  out += '"';
}

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return format_float(value);
}

class JsonWriter {
 public:
  JsonWriter(Rendering& r, TextBuilder& out, const JsonStyle& style) : r_(r), out_(out), style_(style) {}

  void write(const Datum& value) {
    const Rendering::Nesting nesting(r_);
    r_.step();
    switch (value.kind) {
      case Kind::kString:
        return append_json_string(out_, r_.text(value), style_.ensure_ascii);
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        out_ += scalar(value);
        return;
      case Kind::kList:
      case Kind::kTuple:
        return write_list(value);
      case Kind::kDict:
        return write_dict(value);
      default:
        r_.fail("Object of type {} is not JSON serializable", type_name(value));
    }
  }

 private:
  static std::string scalar(const Datum& value) {
    if (value.is(Kind::kNone)) return "null";
    if (value.is(Kind::kBool)) return value.integer != 0 ? "true" : "false";
    return value.is(Kind::kInt) ? std::to_string(value.integer) : json_float(value.number);
  }

  void new_line() {
    if (!style_.has_indent) return;
    out_ += '\n';
    for (size_t i = 0; i < level_; ++i) out_ += style_.indent;
  }

  void write_list(const Datum& list) {
    const int64_t size = *size_of(list);
    out_ += '[';
    ++level_;
    for (int64_t i = 0; i < size; ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line();
      write(list_item(r_, list, i));
    }
    --level_;
    if (size > 0) new_line();
    out_ += ']';
  }

  void write_dict(const Datum& dict) {
    const int64_t size = *size_of(dict);
    std::vector<Entry> entries;
    r_.step(size);
    for (int64_t i = 0; i < size; ++i) entries.push_back(dict_entry(r_, dict, i));
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const Entry& a, const Entry& b) { return less(r_, a.key, b.key); });
    }
    out_ += '{';
    ++level_;
    for (const Entry& entry : entries) {
      if (&entry != entries.data()) out_ += style_.item_separator;
      new_line();
      const Datum& key = entry.key;
      if (!key.is_string() && !key.is_number() && !key.is(Kind::kNone)) {
        r_.fail("keys must be str, int, float, bool or None, not {}", type_name(key));
      }
      append_json_string(out_, key.is_string() ? r_.text(key) : scalar(key), style_.ensure_ascii);
      out_ += style_.key_separator;
      write(entry.value);
    }
    --level_;
    if (size > 0) new_line();
    out_ += '}';
  }

  Rendering& r_;
  TextBuilder& out_;
  const JsonStyle& style_;
  size_t level_ = 0;
};

}  // namespace

// The shortest digits that read back as the same number, as Python lays them out: 1e+16 but 123456.0.
std::string format_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(result.ptr - buffer));
  const size_t e = text.find('e');
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto fixed = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed);
  std::string out(buffer, static_cast<size_t>(fixed.ptr - buffer));
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

void append_quoted(TextBuilder& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = next_code_point(text, pos);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      out.append(text.substr(begin, pos - begin));
    } else {
      const auto unit = static_cast<uint32_t>(c);
      out += unit < 0x100     ? fmt::format("\\x{:02x}", unit)
             : unit < 0x10000 ? fmt::format("\\u{:04x}", unit)
                              : fmt::format("\\U{:08x}", unit);
    }
  }
  out += quote;
}

Datum escape_html(Rendering& r, const Datum& text) {
  TextBuilder out(r);
  append_escaped(out, r.text(text));
  return r.copy_made_of(r.text(text), out.text(), /*markup=*/true);
}

void append_escaped(TextBuilder& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
}

namespace {

std::string_view reversed(Rendering& r, std::string_view text) {
  char* bytes = r.string_room(static_cast<int64_t>(text.size()));
  std::reverse_copy(text.begin(), text.end(), bytes);
  return {bytes, text.size()};
}

}  // namespace

ReverseSearch::ReverseSearch(Rendering& r, std::string_view text, std::string_view sub)
    : text_(reversed(r, text)), sub_(reversed(r, sub)) {}

size_t ReverseSearch::next() {
  const size_t at = from_ > text_.size() ? std::string_view::npos : find_text(text_, sub_, from_);
  if (at == std::string_view::npos) return at;
  from_ = at + sub_.size();
  return text_.size() - from_;
}

Datum replaced(Rendering& r, std::string_view text, std::string_view from, std::string_view to, int64_t count,
               bool markup) {
  TextBuilder out(r);
  size_t pos = 0;
  const auto insert = [&] {
    r.step();
    out += to;
  };
  if (from.empty()) {
    // Between all characters, and at both ends.
    for (; count-- != 0;) {
      insert();
      if (pos >= text.size()) break;
      const size_t begin = pos;
      next_code_point(text, pos);
      out += text.substr(begin, pos - begin);
    }
  } else {
    for (size_t at = find_text(text, from); at != std::string_view::npos && count-- != 0;
         at = find_text(text, from, pos)) {
      out += text.substr(pos, at - pos);
      insert();
      pos = at + from.size();
    }
  }
  out += text.substr(pos);
  return out.finish(markup);
}

void append_str(Rendering& r, TextBuilder& out, const Datum& value) {
  if (value.is_string()) {
    out.append(r.text(value));
  } else if (!value.is_undefined()) {
    append_repr(r, out, value);
  }
}

void append_repr(Rendering& r, TextBuilder& out, const Datum& value) {
  const Rendering::Nesting nesting(r);
  r.step();
  switch (value.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
      out += "Undefined";
      return;
    case Kind::kNone:
      out += "None";
      return;
    case Kind::kBool:
      out += value.integer != 0 ? "True" : "False";
      return;
    case Kind::kInt:
      out += std::to_string(value.integer);
      return;
    case Kind::kFloat:
      out += format_float(value.number);
      return;
    case Kind::kString:
      if (value.markup) out += "Markup(";
      append_quoted(out, r.text(value));
      if (value.markup) out += ')';
      return;
    case Kind::kList:
      out += '[';
      append_items(r, out, value);
      out += ']';
      return;
    case Kind::kTuple:
      out += '(';
      append_items(r, out, value);
      out += value.list->size == 1 ? ",)" : ")";
      return;
    case Kind::kDict:
      return append_dict(r, out, value);
    case Kind::kRange:
      out += fmt::format("range({}, {}", value.range->start, value.range->stop);
      out += value.range->step == 1 ? ")" : fmt::format(", {})", value.range->step);
      return;
    case Kind::kView:
      out += fmt::format("{}([", type_name(value));
      append_items(r, out, to_list(r, value));
      out += "])";
      return;
    case Kind::kNamespace:
      out += "<Namespace ";
      append_dict(r, out, dictionary(r.make(Dict{value.name_space->entries, value.name_space->size})));
      out += '>';
      return;
    case Kind::kMacro:
    case Kind::kLoop:
    case Kind::kIterator:
    case Kind::kFunction:
    case Kind::kMethod:
    case Kind::kCycler:
    case Kind::kJoiner:
      // CPython prints an address here, which no template can mean.
      r.fail("expected a value that has a text, found an object of type {}", type_name(value));
  }
}

Datum to_str(Rendering& r, const Datum& value) {
  if (value.is_string()) return with_markup(value, false);
  TextBuilder out(r);
  append_str(r, out, value);
  return out.finish();
}

Datum to_soft_str(Rendering& r, const Datum& value) { return value.is_string() ? value : to_str(r, value); }

void append_json(Rendering& r, TextBuilder& out, const Datum& value, const JsonStyle& style) {
  JsonWriter(r, out, style).write(value);
}

}  // namespace tessera::jinja
