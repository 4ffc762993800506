// Limits of a rendering and what it reports besides its text.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/value.h"

namespace tessera::jinja {

// Thrown by a template's `raise_exception(message)`: the template does not accept the data.
class RaisedByTemplate : public Error {
 public:
  RaisedByTemplate(const std::string& what, std::string message)
      : Error(ExitCode::kBadData, what), message_(std::move(message)) {}
  // The template's own text; what() has the position as well.
  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

// A string of the context whose bytes are followed: slices, sums, filters and what templates capture.
struct TracedText {
  std::string_view text;  // of the context itself, not of a copy
  int64_t id;
};

// Bytes [begin, end) of a text that come from the string with this id.
struct TracedSpan {
  int64_t begin, end;
  int64_t id;
};

// The output of one iteration of a `for` over a list of the context.
struct TracedItem {
  int64_t begin, end;  // bytes of the text
  int64_t index;       // of the item
};

struct RenderOptions {
  // Limits at which rendering a template fails. A step is an evaluated node, or 16 bytes read or written:
  // about 50 ns. Memory counts the values made while rendering; output bounds each string, too; depth counts
  // nested evaluations and fits the stack of the thread.
  int64_t max_steps = 10'000'000;
  int64_t max_output_bytes = int64_t{64} << 20;
  int64_t max_memory_bytes = int64_t{256} << 20;
  int max_depth = 1500;
  // Local time for strftime_now; the system's clock if not set.
  std::function<std::tm()> clock;
  // Reports where `{% generation %}` blocks lie. Such a block in a macro, a block assignment or a filter
  // block is then an error, since text that is captured may appear anywhere, or nowhere.
  bool track_generation = false;
  std::vector<TracedText> traced_texts;
  const Value::List* traced_items = nullptr;  // objects; loops whose output is captured are not followed
};

}  // namespace tessera::jinja
