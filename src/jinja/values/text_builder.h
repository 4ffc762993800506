// A string that is put together from pieces, with the spans of those that are traced.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "jinja/values/rendering.h"

namespace tessera::jinja {

class TextBuilder {
 public:
  explicit TextBuilder(Rendering& r) : r_(r) {}
  TextBuilder(Rendering& r, std::string text) : r_(r), text_(std::move(text)) { count(text_.size()); }

  // A view of memory of the rendering, to be traced, or of anything else.
  TextBuilder& operator+=(std::string_view piece) {
    count(piece.size() + kPieceBytes);
    const size_t num_spans = spans_.size();
    r_.trace.find(piece, size(), &spans_);
    r_.hold(static_cast<int64_t>((spans_.size() - num_spans) * sizeof(TracedSpan)));
    text_ += piece;
    return *this;
  }
  TextBuilder& operator+=(char c) {
    count(1);
    text_ += c;
    return *this;
  }
  TextBuilder& operator+=(const TextBuilder& piece) {
    count(piece.text_.size());
    r_.step(static_cast<int64_t>(piece.spans_.size()));
    r_.hold(static_cast<int64_t>(piece.spans_.size() * sizeof(TracedSpan)));
    for (const TracedSpan& span : piece.spans_)
      append_span({size() + span.begin, size() + span.end, span.id}, &spans_);
    text_ += piece.text_;
    return *this;
  }
  void append(std::string_view piece) { *this += piece; }
  // A text made from all of `source`: if any of that is traced, so is the whole text.
  void append_made_of(std::string_view source, std::string_view text) {
    count(text.size());
    std::vector<TracedSpan> found;
    r_.trace.find(source, 0, &found);
    if (!found.empty() && !text.empty())
      append_span({size(), size() + static_cast<int64_t>(text.size()), found[0].id}, &spans_);
    text_ += text;
  }

  int64_t size() const { return static_cast<int64_t>(text_.size()); }
  bool empty() const { return text_.empty(); }
  const std::string& text() const { return text_; }
  const std::vector<TracedSpan>& spans() const { return spans_; }

  Datum finish(bool markup = false) {
    const Datum made = r_.copy_string(text_, markup);
    r_.add_spans(made, spans_);
    return made;
  }

 private:
  // Counts steps for, and limits the size of, what is appended; single characters and short pieces together.
  void count(size_t bytes) {
    uncounted_ += static_cast<int64_t>(bytes);
    if (uncounted_ < kCountedBytes) return;
    r_.step_bytes(uncounted_);
    uncounted_ = 0;
    r_.check_text_size(size() + static_cast<int64_t>(bytes));
  }

  static constexpr int64_t kCountedBytes = 256;
  static constexpr size_t kPieceBytes = Rendering::kBytesPerStep;  // cost of appending a piece
  Rendering& r_;
  int64_t uncounted_ = 0;
  std::string text_;
  std::vector<TracedSpan> spans_;
};

}  // namespace tessera::jinja
