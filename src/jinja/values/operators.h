// Python's operations on values.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "jinja/values/rendering.h"

namespace tessera::jinja {

enum class Comparison : uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

enum class Arithmetic : uint8_t { kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };

bool is_true(const Datum& value);
bool equal(Rendering& r, const Datum& a, const Datum& b);
// Python's `is`, as far as values here have an identity.
bool same(Rendering& r, const Datum& a, const Datum& b);
// a < b; fails for kinds without an order.
bool less(Rendering& r, const Datum& a, const Datum& b, std::string_view operation = "<");
bool compare(Rendering& r, Comparison comparison, const Datum& a, const Datum& b);
bool contains(Rendering& r, const Datum& container, const Datum& item);

Datum arithmetic(Rendering& r, Arithmetic operation, const Datum& a, const Datum& b);
Datum add(Rendering& r, const Datum& a, const Datum& b);
Datum negate(Rendering& r, const Datum& value);
Datum plus(Rendering& r, const Datum& value);

// Sizes and elements. length_of is empty for values without a length; size_of also for strings, whose
// characters must be counted.
std::optional<int64_t> size_of(const Datum& value);
std::optional<int64_t> length_of(Rendering& r, const Datum& value);
Datum list_item(Rendering& r, const Datum& list, int64_t index);  // lists and tuples; 0 <= index < size
Entry dict_entry(Rendering& r, const Datum& dict, int64_t index);
// Missing if there is no such key.
Datum dict_find(Rendering& r, const Datum& dict, const Datum& key);
Datum dict_find(Rendering& r, const Datum& dict, std::string_view key);
// Inserts or replaces; entries have room for one more.
void dict_insert(Rendering& r, Entry* entries, int64_t& size, const Datum& key, const Datum& value);
bool is_mapping(const Datum& value);

// Missing if `object` has no element at an integer index.
Datum element(Rendering& r, const Datum& object, int64_t index);
// x[begin:end:step].
Datum get_slice(Rendering& r, const Datum& object, const Datum& begin, const Datum& end, const Datum& step);

// All items of what can be iterated over: lists, keys of dicts, characters, iterators (which are used up).
// Fails otherwise.
Datum to_list(Rendering& r, const Datum& value);
bool is_iterable(const Datum& value);

// An integer argument; fails for other kinds, naming the function.
int64_t to_integer(Rendering& r, const Datum& value, std::string_view function);
// A string argument; fails for other kinds.
std::string_view to_string_argument(Rendering& r, const Datum& value, std::string_view function);

}  // namespace tessera::jinja
