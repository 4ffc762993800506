// Chat templates: Jinja as Transformers sets it up (a sandboxed environment with trim_blocks, lstrip_blocks,
// loop controls, a plain `tojson`, `raise_exception`, `strftime_now` and `{% generation %}`), rendered byte
// for byte as Jinja2 3.1 and CPython render it. Sources: Jinja2's lexer, parser, compiler and filters;
// transformers/utils/chat_template_utils.py.
//
// What differs: integers have 64 bits and leaving that range is an error; generators (`map`, `select`, ...)
// are computed when they are made; extends, block, include, import, from and autoescape are refused when a
// template is parsed, as are the filters `random`, `pprint`, `striptags`, `urlize` and `wordwrap`. `lipsum`
// and the methods encode, format_map, maketrans and translate of str are undefined.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/value.h"
#include "jinja/values/render_options.h"

namespace tessera::jinja {

struct Program;

struct Rendered {
  std::string text;
  std::vector<std::pair<int64_t, int64_t>> generation;  // [begin, end) in bytes of text, ascending
  std::vector<TracedSpan> traced_spans;                 // ascending
  std::vector<TracedItem> traced_items;                 // ascending, of the outermost loops
};

class Template {
 public:
  // Throws Error(kBadData) "origin: line 3: expected ..., found ...".
  static Template parse(std::string_view source, const std::string& origin);

  // Renders with the fields of `context` as variables. May be called by several threads at once. Throws
  // RaisedByTemplate, and Error(kBadData) with the template's line for other errors and exceeded limits.
  Rendered render(const Value::Object& context, const RenderOptions& options = {}) const;

  bool has_generation() const;

 private:
  explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  std::shared_ptr<const Program> program_;
};

}  // namespace tessera::jinja
