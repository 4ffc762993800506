#include "jinja/values/rendering.h"

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "jinja/values/operators.h"
#include "jinja/values/python_text.h"
#include "jinja/values/text_builder.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kBlockBytes = int64_t{16} << 10;
constexpr int64_t kAlignment = 8;
constexpr int64_t kMaxStringBytes = std::numeric_limits<uint32_t>::max();

}  // namespace

void Rendering::fail_with(const std::string& message) const {
  throw Error(ExitCode::kBadData, fmt::format("{}: line {}: {}", origin_, line, printable(message, 400)));
}

void Rendering::fail_undefined(const Datum& value) const {
  const Undefined& why = *value.undefined;
  if (!why.hint.empty()) fail_with(std::string(why.hint));
  if (why.object.is_missing()) fail("'{}' is undefined", why.name);
  const std::string object = object_name(why.object);
  if (why.unsafe) {
    fail("access to attribute '{}' of '{}' object is unsafe", bytes_of(why.element), type_name(why.object));
  }
  if (why.element.is_string()) fail("'{}' has no attribute '{}'", object, bytes_of(why.element));
  fail(
      "{} has no element {}", object,
      why.element.is(Kind::kInt) ? std::to_string(why.element.integer) : std::string(type_name(why.element)));
}

void Rendering::raised_by_template(const std::string& message) const {
  throw RaisedByTemplate(
      fmt::format("{}: line {}: the template refuses this: {}", origin_, line, printable(message, 400)),
      message);
}

void Rendering::fail_steps() const {
  fail(
      "rendering takes more than {}: is there a loop, or an operation on long text, that grows without need?",
      count_of(options.max_steps, "step"));
}

void Rendering::fail_memory() const {
  fail("rendering takes more than {} of memory", format_bytes(options.max_memory_bytes));
}

void Rendering::fail_output() const {
  fail("the text is longer than {}", format_bytes(options.max_output_bytes));
}

void Rendering::fail_depth() const {
  if (depth_ < options.max_depth) fail("evaluations nested too deep: the stack of the thread ends");
  fail("more than {} nested evaluations", options.max_depth);
}

char* Rendering::take(int64_t bytes, int64_t alignment) {
  char* begin = next_ == nullptr ? nullptr : next_ + (-reinterpret_cast<intptr_t>(next_) & (alignment - 1));
  if (begin == nullptr || bytes > end_ - begin) {
    if (bytes > options.max_memory_bytes - memory_bytes_) fail_memory();
    // Large strings get as much again, so that what is appended to them need not copy them.
    const int64_t wanted = bytes < kBlockBytes / 4 ? kBlockBytes : 2 * bytes;
    const int64_t size = std::max(bytes, std::min(wanted, options.max_memory_bytes - memory_bytes_));
    memory_bytes_ += size;
    blocks_.emplace_back(new char[static_cast<size_t>(size)]);
    begin = blocks_.back().get();
    end_ = begin + size;
  }
  next_ = begin + bytes;
  return begin;
}

void* Rendering::allocate(int64_t bytes) { return take(bytes, kAlignment); }

char* Rendering::string_room(int64_t bytes) {
  check_text_size(bytes);
  step_bytes(bytes);
  return take(bytes, 1);
}

Datum Rendering::copy_string(std::string_view text, bool markup) {
  if (text.empty()) return string({}, markup);
  char* out = string_room(static_cast<int64_t>(text.size()));
  std::memcpy(out, text.data(), text.size());
  copied(text, out);
  return string({out, text.size()}, markup);
}

Datum Rendering::copy_made_of(std::string_view source, std::string_view text, bool markup) {
  TextBuilder made(*this);
  made.append_made_of(source, text);
  return made.finish(markup);
}

Datum Rendering::take_output(size_t begin) {
  const Datum text = copy_string(std::string_view(output).substr(begin));
  const auto from = static_cast<int64_t>(begin);
  while (!spans.empty() && spans.back().end > from) {
    TracedSpan& span = spans.back();
    const int64_t first = std::max(from, span.begin);
    trace.add(bytes_of(text).substr(static_cast<size_t>(first - from), static_cast<size_t>(span.end - first)),
              span.id);
    hold(Trace::kRangeBytes);
    if (span.begin < from) {
      span.end = from;
    } else {
      spans.pop_back();
    }
  }
  output.resize(begin);
  return text;
}

void Rendering::write(const TextBuilder& text) {
  for (const TracedSpan& span : text.spans()) {
    const auto at = static_cast<int64_t>(output.size());
    append_span({at + span.begin, at + span.end, span.id}, &spans);
  }
  write(std::string_view(text.text()));
}

void Rendering::copied(std::string_view bytes, const char* to) {
  const int64_t before = trace.memory_bytes();
  trace.copied(bytes, to);
  hold(trace.memory_bytes() - before);
}

void Rendering::add_spans(const Datum& made, const std::vector<TracedSpan>& made_spans) {
  hold(std::ssize(made_spans) * Trace::kRangeBytes);
  trace.add(made.text.begin, made_spans);
}

Datum Rendering::concat(const Datum& first, const Datum& second) {
  const std::string_view a = bytes_of(first), b = bytes_of(second);
  if (b.empty()) return string(a);
  if (a.empty()) return string(b);
  const auto size = static_cast<int64_t>(a.size() + b.size());
  if (a.data() + a.size() == next_ && static_cast<int64_t>(b.size()) <= end_ - next_ &&
      size <= options.max_output_bytes) {
    step_bytes(static_cast<int64_t>(b.size()));
    std::memmove(next_, b.data(), b.size());
    copied(b, next_);
    next_ += b.size();
    return string({a.data(), a.size() + b.size()});
  }
  char* out = string_room(size);
  std::memcpy(out, a.data(), a.size());
  std::memcpy(out + a.size(), b.data(), b.size());
  copied(a, out);
  copied(b, out + a.size());
  return string({out, static_cast<size_t>(size)});
}

Datum Rendering::make_list(const std::vector<Datum>& items, Kind kind) {
  const auto size = static_cast<int64_t>(items.size());
  Datum* copy = array<Datum>(size);
  std::copy(items.begin(), items.end(), copy);
  return sequence(make(List{copy, size}), kind);
}

Datum Rendering::make_pair(const Datum& a, const Datum& b) {
  Datum* items = array<Datum>(2);
  items[0] = a;
  items[1] = b;
  return sequence(make(List{items, 2}), Kind::kTuple);
}

Datum Rendering::make_iterator(const Datum& list, const char* type_name) {
  return datum(Kind::kIterator, &Datum::iterator,
               make(Iterator{type_name, list.list->items, list.list->size, 0}));
}

Datum Rendering::make_undefined(std::string_view hint) {
  Undefined why;
  why.hint = bytes_of(copy_string(hint));
  return undefined(make(why));
}

Datum Rendering::missing_attribute(const Datum& object, const Datum& name, bool unsafe) {
  Undefined why;
  why.object = object;
  why.element = name;
  why.unsafe = unsafe;
  return undefined(make(why));
}

Datum Rendering::import(const Value& value) {
  if (const std::string* text = value.string()) {
    if (static_cast<int64_t>(text->size()) > kMaxStringBytes) fail_memory();
    return string(*text);
  }
  if (const Value::Object* object = value.object()) {
    Datum d;
    d.kind = Kind::kDict;
    d.foreign = true;
    d.foreign_dict = object;
    return d;
  }
  if (const Value::List* list = value.list()) {
    Datum d;
    d.kind = Kind::kList;
    d.foreign = true;
    d.foreign_list = list;
    return d;
  }
  if (const bool* flag = value.boolean()) return boolean(*flag);
  if (const int64_t* whole = value.integer()) return integer(*whole);
  if (const double* real = value.number()) return number(*real);
  return none();
}

void bind_arguments(Rendering& r, const Arguments& args, std::string_view function,
                    std::span<const std::string_view> names, size_t num_required, Datum* out) {
  if (args.size > std::ssize(names)) {
    r.fail("{}() takes at most {} but {} given", function, count_of(std::ssize(names), "argument"),
           args.size);
  }
  std::copy(args.items, args.items + args.size, out);
  for (int64_t k = 0; k < args.num_keywords; ++k) {
    const Keyword& keyword = args.keywords[k];
    const auto at = std::find(names.begin(), names.end(), keyword.name);
    if (at == names.end()) r.fail("{}() got an unexpected keyword argument '{}'", function, keyword.name);
    Datum& value = out[at - names.begin()];
    if (!value.is_missing()) r.fail("{}() got multiple values for argument '{}'", function, keyword.name);
    value = keyword.value;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (out[i].is_missing()) r.fail("{}() missing required argument '{}'", function, names[i]);
  }
}

}  // namespace tessera::jinja
