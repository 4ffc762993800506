// The state of one rendering: memory, output, limits, and the errors that stop it.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/stack_room.h"
#include "jinja/values/datum.h"
#include "jinja/values/render_options.h"
#include "jinja/values/trace.h"

namespace tessera::jinja {

struct Keyword {
  std::string_view name;
  Datum value;
};

// The arguments of a call: positional ones, then those with names.
struct Arguments {
  const Datum* items = nullptr;
  int64_t size = 0;
  const Keyword* keywords = nullptr;
  int64_t num_keywords = 0;

  const Datum& operator[](size_t i) const { return items[i]; }
  bool has(size_t i) const { return !items[i].is_missing(); }  // of a function whose parameters have names
  // Drops the first `count` positional arguments.
  Arguments after(int64_t count) const { return {items + count, size - count, keywords, num_keywords}; }
};

class TextBuilder;

// Python's binding of arguments to the parameters of a function; missing where none was given.
void bind_arguments(Rendering& r, const Arguments& args, std::string_view function,
                    std::span<const std::string_view> names, size_t num_required, Datum* out);

class Rendering {
 public:
  // Reading, comparing or writing this many bytes counts as a step.
  static constexpr int64_t kBytesPerStep = 16;

  Rendering(const std::string& origin, const RenderOptions& limits) : options(limits), origin_(origin) {
    for (const TracedText& traced : limits.traced_texts) trace.add(traced.text, traced.id);
  }
  Rendering(const Rendering&) = delete;
  Rendering& operator=(const Rendering&) = delete;

  const RenderOptions& options;
  std::string output;
  Trace trace;                    // see copied() and add_spans()
  std::vector<TracedSpan> spans;  // of output
  int line = 1;                   // of the template, for messages

  // Throws Error(kBadData) with the template's origin and line.
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_with(fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void fail_with(const std::string& message) const;
  [[noreturn]] void fail_undefined(const Datum& value) const;
  [[noreturn]] void raised_by_template(const std::string& message) const;

  void step(int64_t count = 1) {
    steps_ += count;
    if (steps_ > options.max_steps) [[unlikely]]
      fail_steps();
  }
  void step_bytes(int64_t bytes) { step(1 + bytes / kBytesPerStep); }

  // The bytes of a string, counted as read once.
  std::string_view text(const Datum& value) {
    step_bytes(value.size);
    return bytes_of(value);
  }
  // Calls a function written in C++.
  Datum call(const FunctionEntry& entry, const Datum& self, const Arguments& args) {
    const Nesting nesting(*this);
    step();
    if (entry.takes_all_) return entry.function_(*this, self, args);
    Datum bound[FunctionEntry::kMaxParameters];
    bind_arguments(*this, args, entry.name, entry.parameters(), entry.num_required_, bound);
    return entry.function_(*this, self, {bound, static_cast<int64_t>(entry.num_parameters_)});
  }
  // Memory that is not from allocate(), such as what records where traced bytes are.
  void hold(int64_t bytes) {
    memory_bytes_ += bytes;
    if (memory_bytes_ > options.max_memory_bytes) [[unlikely]]
      fail_memory();
  }
  // Checks the limit for a string of `bytes` bytes.
  void check_text_size(int64_t bytes) const {
    if (bytes > options.max_output_bytes) [[unlikely]]
      fail_output();
  }

  // Memory that lives as long as the rendering, aligned for any Datum.
  void* allocate(int64_t bytes);
  template <typename T>
  T* make(T value) {
    return new (allocate(sizeof(T))) T(std::move(value));
  }
  template <typename T>
  T* array(int64_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    if (count > options.max_memory_bytes / static_cast<int64_t>(sizeof(T))) fail_memory();
    return new (allocate(count * static_cast<int64_t>(sizeof(T)))) T[static_cast<size_t>(count)];
  }

  Datum copy_string(std::string_view text, bool markup = false);
  // a + b, without markup; when `a` is the string made last, its bytes are not copied again.
  Datum concat(const Datum& a, const Datum& b);
  // Room for a string of this size that is filled by the caller.
  char* string_room(int64_t bytes);
  // A string made from all of `source`, such as one in upper case: all of it is traced if any of `source` is.
  Datum copy_made_of(std::string_view source, std::string_view text, bool markup = false);
  // Takes what was written since output had `begin` bytes away from it.
  Datum take_output(size_t begin);

  Datum make_list(const std::vector<Datum>& items, Kind kind = Kind::kList);
  Datum make_pair(const Datum& a, const Datum& b);
  Datum make_iterator(const Datum& list, const char* type_name = "generator");
  Datum make_undefined(std::string_view hint);
  Datum missing_attribute(const Datum& object, const Datum& name, bool unsafe = false);
  // A value of the context: strings, lists and dicts are not copied.
  Datum import(const Value& value);

  void write(std::string_view text) {
    const auto size = static_cast<int64_t>(text.size());
    check_text_size(static_cast<int64_t>(output.size()) + size);
    step_bytes(size);
    const size_t num_spans = spans.size();
    trace.find(text, static_cast<int64_t>(output.size()), &spans);
    hold(static_cast<int64_t>((spans.size() - num_spans) * sizeof(TracedSpan)));
    output.append(text);
  }
  void write(const TextBuilder& text);
  // `to` has a copy of `bytes`: it is traced as they are.
  void copied(std::string_view bytes, const char* to);
  // Spans of the string `made`.
  void add_spans(const Datum& made, const std::vector<TracedSpan>& made_spans);

  // One level deeper while it lives: evaluations, and whatever recurses over nested values.
  class Nesting {
   public:
    explicit Nesting(Rendering& r) : r_(r) {
      const bool fits = __builtin_frame_address(0) > r_.stack_floor_;
      if (++r_.depth_ > r_.options.max_depth || !fits) [[unlikely]] {
        --r_.depth_;
        r_.fail_depth();
      }
    }
    ~Nesting() { --r_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Rendering& r_;
  };

 private:
  [[noreturn]] void fail_steps() const;
  [[noreturn]] void fail_memory() const;
  [[noreturn]] void fail_output() const;
  [[noreturn]] void fail_depth() const;
  char* take(int64_t bytes, int64_t alignment);

  static std::string_view bytes_of(const Datum& value) { return {value.text.begin, value.size}; }

  const std::string& origin_;
  const void* const stack_floor_ = stack_floor();
  int64_t steps_ = 0;
  int64_t memory_bytes_ = 0;
  int depth_ = 0;
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  char* end_ = nullptr;
};

// A list whose length is not known before, in the arena.
class ListBuilder {
 public:
  explicit ListBuilder(Rendering& r) : r_(r) {}
  void push(const Datum& item) {
    if (size_ == capacity_) grow();
    items_[size_++] = item;
  }
  const Datum* items() const { return items_; }
  int64_t size() const { return size_; }
  Datum finish(Kind kind = Kind::kList) { return sequence(r_.make(List{items_, size_}), kind); }

 private:
  void grow() {
    const int64_t capacity = capacity_ == 0 ? 8 : 2 * capacity_;
    Datum* items = r_.array<Datum>(capacity);
    if (size_ > 0) std::memcpy(static_cast<void*>(items), items_, static_cast<size_t>(size_) * sizeof(Datum));
    items_ = items;
    capacity_ = capacity;
  }

  Rendering& r_;
  Datum* items_ = nullptr;
  int64_t size_ = 0, capacity_ = 0;
};

}  // namespace tessera::jinja
