// Values while a template is rendered: Python's, as far as templates can tell. A Datum is 16 bytes and points
// to memory that outlives it: the rendering's arena, the template or the context. Nothing is counted or freed
// before the rendering ends, and a string's slices share its bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/value.h"

namespace tessera::jinja {

class Rendering;
struct Arguments;
struct Datum;
struct Dict;
struct Frame;
struct List;
struct Loop;
struct Macro;
struct MacroCode;
struct Method;
struct Namespace;
struct Undefined;

enum class Kind : uint8_t {
  kMissing,  // no value: an argument that was not given, a name that was not assigned
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kRange,
  kView,      // dict.items(), keys(), values()
  kIterator,  // a generator: can be read once
  kNamespace,
  kLoop,
  kMacro,
  kFunction,  // a global function
  kMethod,    // a method bound to its object
  kCycler,
  kJoiner,
};

using NativeFunction = Datum (*)(Rendering&, const Datum& self, const Arguments&);

// A filter, test, global function or method, with its parameters: those in brackets may be left out, as in
// "old new [count]". Its function gets an argument for each, missing where none was given; with "*", the
// arguments as they are. Rendering::call() calls it, one level deeper.
class FunctionEntry {
 public:
  static constexpr size_t kMaxParameters = 4;

  constexpr FunctionEntry(std::string_view function_name, NativeFunction function,
                          std::string_view parameters = "")
      : name(function_name), function_(function), takes_all_(parameters == "*") {
    bool is_optional = false;
    for (size_t begin = 0; begin < parameters.size() && !takes_all_;) {
      if (parameters[begin] == '[') {
        is_optional = true;
        ++begin;
      }
      const size_t end = std::min(parameters.find_first_of(" ]", begin), parameters.size());
      parameters_[num_parameters_++] = parameters.substr(begin, end - begin);
      if (!is_optional) num_required_ = num_parameters_;
      begin = end + 1;
    }
  }
  bool is(NativeFunction function) const { return function_ == function; }
  std::span<const std::string_view> parameters() const { return {parameters_.data(), num_parameters_}; }

  std::string_view name;

 private:
  friend class Rendering;
  NativeFunction function_;
  bool takes_all_;
  std::array<std::string_view, kMaxParameters> parameters_;
  size_t num_parameters_ = 0;
  size_t num_required_ = 0;
};

// Where the bytes of a string are. Rendering::text() reads them, and counts that as steps: so there is no
// operation on strings that the limits do not see.
class StringBytes {
  friend class Rendering;
  friend Datum string(std::string_view text, bool markup);
  const char* begin;
};

struct Range {
  int64_t start, stop, step, size;
};

struct View;
struct Iterator;
struct Cycler;
struct Joiner;

struct Datum {
  Kind kind = Kind::kMissing;
  bool markup = false;   // a string: markupsafe's Markup, which escapes what is added to it
  bool foreign = false;  // a list or dict of the context, not of the arena
  bool group = false;    // a tuple: made by groupby, with the attributes `grouper` and `list`
  uint32_t size = 0;     // bytes of a string
  union {
    int64_t integer = 0;  // kInt, kBool
    double number;
    StringBytes text;
    const Undefined* undefined;
    const List* list;  // kList, kTuple
    const Value::List* foreign_list;
    const Dict* dict;
    const Value::Object* foreign_dict;
    const Range* range;
    const View* view;
    Iterator* iterator;
    Namespace* name_space;
    Loop* loop;
    const Macro* macro;
    const FunctionEntry* function;
    const Method* method;
    Cycler* cycler;
    Joiner* joiner;
  };

  bool is(Kind other) const { return kind == other; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_missing() const { return kind == Kind::kMissing; }
  bool is_undefined() const { return kind == Kind::kUndefined; }
  bool is_sequence() const { return kind == Kind::kList || kind == Kind::kTuple; }
  bool is_integral() const { return kind == Kind::kInt || kind == Kind::kBool; }
  bool is_number() const { return is_integral() || kind == Kind::kFloat; }
  double as_double() const { return kind == Kind::kFloat ? number : static_cast<double>(integer); }
};
static_assert(sizeof(Datum) == 16);

struct List {
  const Datum* items;
  int64_t size;
};

struct Entry {
  Datum key, value;
};

struct Dict {
  const Entry* entries;  // in the order of insertion; keys are distinct
  int64_t size;
};

struct Namespace {
  Entry* entries;
  int64_t size, capacity;
};

// Why a value is undefined, for the message when it is used.
struct Undefined {
  std::string_view hint;  // the whole message, if not empty
  std::string_view name;
  Datum object;  // missing: a variable; otherwise what has no such attribute or element
  Datum element;
  bool unsafe = false;
};

enum class ViewKind : uint8_t { kItems, kKeys, kValues };

struct View {
  Datum dict;
  ViewKind kind;
};

struct Iterator {
  const char* type_name;
  const Datum* items;
  int64_t size, next;
};

struct Method {
  Datum self;
  const FunctionEntry* entry;
};

struct Cycler {
  const Datum* items;
  int64_t size, next;
};

struct Joiner {
  Datum separator;
  bool used;
};

struct Macro {
  std::string_view name;
  const MacroCode* code;
  Frame* frame;  // where it was defined
};

// The variable `loop`, as far as expressions see it.
struct Loop {
  virtual Datum attribute(std::string_view name) = 0;  // missing if there is none of this name

 protected:
  ~Loop() = default;
};

Datum string(std::string_view text, bool markup = false);

template <typename T>
Datum datum(Kind kind, T Datum::*member, std::type_identity_t<T> value) {
  Datum d;
  d.kind = kind;
  d.*member = value;
  return d;
}

inline Datum none() {
  Datum d;
  d.kind = Kind::kNone;
  return d;
}

inline Datum boolean(bool value) { return datum(Kind::kBool, &Datum::integer, value); }

inline Datum integer(int64_t value) { return datum(Kind::kInt, &Datum::integer, value); }

inline Datum number(double value) { return datum(Kind::kFloat, &Datum::number, value); }

// The bytes must outlive the rendering; at most 4 GiB, which Rendering's allocations and import() ensure.
inline Datum string(std::string_view text, bool markup) {
  Datum d;
  d.kind = Kind::kString;
  d.markup = markup;
  d.size = static_cast<uint32_t>(text.size());
  d.text.begin = text.data();
  return d;
}

inline Datum with_markup(Datum text, bool markup) {
  text.markup = markup;
  return text;
}

inline Datum undefined(const Undefined* why) { return datum(Kind::kUndefined, &Datum::undefined, why); }

inline Datum sequence(const List* list, Kind kind = Kind::kList) { return datum(kind, &Datum::list, list); }

inline Datum dictionary(const Dict* dict) { return datum(Kind::kDict, &Datum::dict, dict); }

// Python's name of the type: "str", "NoneType".
std::string_view type_name(const Datum& value);
// The name of an object in Jinja's messages: "str object", "None".
std::string object_name(const Datum& value);

}  // namespace tessera::jinja
