// Follows the bytes of strings through a rendering, by their addresses: nothing that a rendering makes moves
// or is freed before it ends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "jinja/values/render_options.h"

namespace tessera::jinja {

// Appends a span; one that continues the last one is joined to it.
inline void append_span(const TracedSpan& span, std::vector<TracedSpan>* spans) {
  if (!spans->empty() && spans->back().end == span.begin && spans->back().id == span.id) {
    spans->back().end = span.end;
  } else {
    spans->push_back(span);
  }
}

class Trace {
 public:
  bool empty() const { return ranges_.empty(); }
  static constexpr int64_t kRangeBytes = 64;  // of a node of the map
  int64_t memory_bytes() const { return std::ssize(ranges_) * kRangeBytes; }

  void add(std::string_view bytes, int64_t id) {
    if (!bytes.empty()) ranges_[bytes.data()] = {bytes.data() + bytes.size(), id};
  }
  // Appends the spans of `bytes`, moved so that its first byte is at `at`.
  void find(std::string_view bytes, int64_t at, std::vector<TracedSpan>* spans) const {
    if (ranges_.empty() || bytes.empty()) return;
    const char* const begin = bytes.data();
    const char* const end = begin + bytes.size();
    auto range = ranges_.upper_bound(begin);
    if (range != ranges_.begin()) --range;
    for (; range != ranges_.end() && range->first < end; ++range) {
      const char* const from = std::max(begin, range->first);
      const char* const to = std::min(end, range->second.end);
      if (from < to) append_span({at + (from - begin), at + (to - begin), range->second.id}, spans);
    }
  }
  // `to` has a copy of `bytes`.
  void copied(std::string_view bytes, const char* to) {
    if (ranges_.empty()) return;
    found_.clear();
    find(bytes, 0, &found_);
    add(to, found_);
  }
  // The spans of the string that begins at `text`.
  void add(const char* text, const std::vector<TracedSpan>& spans) {
    for (const TracedSpan& span : spans) {
      ranges_[text + span.begin] = {text + span.end, span.id};
    }
  }

 private:
  struct Range {
    const char* end;
    int64_t id;
  };
  std::map<const char*, Range> ranges_;  // by their first byte; disjoint
  std::vector<TracedSpan> found_;
};

}  // namespace tessera::jinja
