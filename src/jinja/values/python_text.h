// Text of values as Python writes it: str(), repr(), float formatting, json.dumps.
#pragma once

#include <string>
#include <string_view>

#include "jinja/values/text_builder.h"

namespace tessera::jinja {

void append_str(Rendering& r, TextBuilder& out, const Datum& value);
void append_repr(Rendering& r, TextBuilder& out, const Datum& value);
// str() as a value; strings stay as they are, without Markup.
Datum to_str(Rendering& r, const Datum& value);
// markupsafe.soft_str: Markup stays Markup.
Datum to_soft_str(Rendering& r, const Datum& value);

std::string format_float(double value);                       // repr(float)
void append_quoted(TextBuilder& out, std::string_view text);  // repr(str)
Datum escape_html(Rendering& r, const Datum& text);           // Markup
void append_escaped(TextBuilder& out, std::string_view text);

// Where `sub` occurs in `text`, from the end backwards and without overlaps.
class ReverseSearch {
 public:
  ReverseSearch(Rendering& r, std::string_view text, std::string_view sub);
  size_t next();  // npos where there are no more

 private:
  std::string_view text_, sub_;  // reversed
  size_t from_ = 0;
};

// str.replace; a negative count replaces all.
Datum replaced(Rendering& r, std::string_view text, std::string_view from, std::string_view to, int64_t count,
               bool markup = false);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool has_indent = false;
  std::string indent;
  std::string item_separator = ", ", key_separator = ": ";
};
void append_json(Rendering& r, TextBuilder& out, const Datum& value, const JsonStyle& style);

// The % operator of strings.
Datum percent_format(Rendering& r, const Datum& format, const Datum& arguments);
// Python's format(value, spec), as fields of str.format use it.
TextBuilder format_value(Rendering& r, const Datum& value, std::string_view spec_text);

}  // namespace tessera::jinja
