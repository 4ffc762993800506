// Filters of sequences, item by item.
#include <algorithm>
#include <string>

#include "jinja/filters/functions.h"
#include "jinja/text/unicode_text.h"
#include "jinja/values/operators.h"
#include "jinja/values/python_text.h"

namespace tessera::jinja {
namespace {

Datum first(Rendering& r, const Datum& value, const Arguments&) {
  if (value.is(Kind::kIterator) && value.iterator->next < value.iterator->size) {
    return value.iterator->items[value.iterator->next++];
  }
  if (value.is_sequence() && *size_of(value) > 0) return list_item(r, value, 0);
  if (value.is_string() && value.size > 0) return get_item(r, value, integer(0));
  const Datum items = to_list(r, value);
  return items.list->size > 0 ? items.list->items[0] : r.make_undefined("No first item, sequence was empty.");
}

Datum last(Rendering& r, const Datum& value, const Arguments&) {
  if (value.is(Kind::kIterator)) r.fail("'{}' object is not reversible", type_name(value));
  if (value.is_sequence() && *size_of(value) > 0) return list_item(r, value, *size_of(value) - 1);
  const Datum items = to_list(r, value);
  return items.list->size > 0 ? items.list->items[items.list->size - 1]
                              : r.make_undefined("No last item, sequence was empty.");
}

Datum list(Rendering& r, const Datum& value, const Arguments&) { return to_list(r, value); }

Datum items(Rendering& r, const Datum& value, const Arguments& args) {
  if (value.is_undefined()) return r.make_iterator(to_list(r, value));
  if (!is_mapping(value)) r.fail("Can only get item pairs from a mapping.");
  return r.make_iterator(to_list(r, r.call(*find_dict_method("items"), value, args)));
}

Datum join(Rendering& r, const Datum& value, const Arguments& args) {
  const std::string_view separator = args.has(0) ? r.text(to_str(r, args[0])) : std::string_view();
  const AttributeGetter get(r, args[1]);
  const Datum list = to_list(r, value);
  TextBuilder out(r);
  for (int64_t i = 0; i < list.list->size; ++i) {
    if (i > 0) out += separator;
    append_str(r, out, get(list.list->items[i]));
  }
  return out.finish();
}

Datum reverse(Rendering& r, const Datum& value, const Arguments&) {
  if (value.is_string()) return get_slice(r, value, {}, {}, integer(-1));
  if (!is_iterable(value)) r.fail("argument must be iterable");
  const Datum forward = to_list(r, value);
  r.step(forward.list->size / 16);
  ListBuilder backward(r);
  for (int64_t i = forward.list->size - 1; i >= 0; --i) backward.push(forward.list->items[i]);
  // A value that cannot be reversed in place becomes a list.
  return value.is(Kind::kIterator) ? backward.finish()
                                   : r.make_iterator(backward.finish(), "list_reverseiterator");
}

Datum map(Rendering& r, const Datum& value, const Arguments& args) {
  ListBuilder out(r);
  const Datum list = is_true(value) ? to_list(r, value) : sequence(r.make(List{}));
  if (args.size == 0) {
    constexpr std::string_view kNames[] = {"attribute", "default"};
    Datum given[2];
    bind_arguments(r, args, "map", kNames, 0, given);
    if (given[0].is_missing()) r.fail("map requires a filter argument");
    const AttributeGetter get(r, given[0], false, given[1].is(Kind::kNone) ? Datum() : given[1]);
    for (int64_t i = 0; i < list.list->size; ++i) out.push(get(list.list->items[i]));
    return r.make_iterator(out.finish());
  }
  const std::string_view name = to_string_argument(r, args.items[0], "map");
  const FunctionEntry* filter = find_filter(name);
  if (filter == nullptr) r.fail("No filter named '{}'.", name);
  for (int64_t i = 0; i < list.list->size; ++i) out.push(r.call(*filter, list.list->items[i], args.after(1)));
  return r.make_iterator(out.finish());
}

template <bool kKeeps, bool kByAttribute>
Datum select(Rendering& r, const Datum& value, const Arguments& args) {
  ListBuilder out(r);
  const Datum list = is_true(value) ? to_list(r, value) : sequence(r.make(List{}));
  if (kByAttribute && args.size == 0) r.fail("Missing parameter for attribute name");
  const AttributeGetter get(r, kByAttribute ? args.items[0] : Datum());
  const int64_t offset = kByAttribute ? 1 : 0;
  const FunctionEntry* test = nullptr;
  if (args.size > offset) {
    const std::string_view name = to_string_argument(r, args.items[offset], "select");
    test = find_test(name);
    if (test == nullptr) r.fail("No test named '{}'.", name);
  }
  for (int64_t i = 0; i < list.list->size; ++i) {
    const Datum item = get(list.list->items[i]);
    const bool passed = is_true(test == nullptr ? item : r.call(*test, item, args.after(offset + 1)));
    if (passed == kKeeps) out.push(list.list->items[i]);
  }
  return r.make_iterator(out.finish());
}

Datum batch(Rendering& r, const Datum& value, const Arguments& args) {
  const int64_t size = to_integer(r, args[0], "batch");
  const Datum list = to_list(r, value);
  ListBuilder rows(r);
  for (int64_t begin = 0; begin < list.list->size;) {
    // Jinja does the same: a size below one never fills a row after its first item.
    const int64_t end = size < 1 ? list.list->size : std::min(list.list->size, begin + size);
    ListBuilder row(r);
    for (int64_t i = begin; i < end; ++i) row.push(list.list->items[i]);
    const bool fills = args.has(1) && !args[1].is(Kind::kNone);
    for (int64_t i = end - begin; fills && i < size; ++i) {
      r.step();
      row.push(args[1]);
    }
    rows.push(row.finish());
    begin = end;
  }
  return r.make_iterator(rows.finish());
}

Datum slice(Rendering& r, const Datum& value, const Arguments& args) {
  const int64_t count = to_integer(r, args[0], "slice");
  if (count == 0) r.fail("integer division or modulo by zero");
  const Datum list = to_list(r, value);
  const int64_t each = list.list->size / std::max<int64_t>(count, 1);
  const int64_t with_extra = list.list->size % std::max<int64_t>(count, 1);
  ListBuilder rows(r);
  int64_t begin = 0;
  for (int64_t k = 0; k < count; ++k) {
    r.step();
    const int64_t end = begin + each + (k < with_extra ? 1 : 0);
    ListBuilder row(r);
    for (int64_t i = begin; i < end; ++i) row.push(list.list->items[i]);
    if (args.has(1) && !args[1].is(Kind::kNone) && k >= with_extra) row.push(args[1]);
    rows.push(row.finish());
    begin = end;
  }
  return r.make_iterator(rows.finish());
}

Datum sum(Rendering& r, const Datum& value, const Arguments& args) {
  const AttributeGetter get(r, args[0]);
  const Datum list = to_list(r, value);
  Datum total = args.has(1) ? args[1] : integer(0);
  if (total.is_string()) r.fail("sum() can't sum strings [use ''.join(seq) instead]");
  for (int64_t i = 0; i < list.list->size; ++i) total = add(r, total, get(list.list->items[i]));
  return total;
}

template <bool kLargest>
Datum extreme(Rendering& r, const Datum& value, const Arguments& args) {
  const AttributeGetter get(r, args[1], !(args.has(0) && is_true(args[0])));
  const Datum list = to_list(r, value);
  if (list.list->size == 0) return r.make_undefined("No aggregated item, sequence was empty.");
  Datum best = list.list->items[0];
  Datum best_key = get(best);
  for (int64_t i = 1; i < list.list->size; ++i) {
    const Datum key = get(list.list->items[i]);
    if (kLargest ? !less(r, best_key, key, ">") : !less(r, key, best_key)) continue;
    best = list.list->items[i];
    best_key = key;
  }
  return best;
}

constexpr FunctionEntry kSequenceFilters[] = {
    {"batch", batch, "linecount [fill_with]"},
    {"first", first},
    {"items", items},
    {"join", join, "[d attribute]"},
    {"last", last},
    {"list", list},
    {"map", map, "*"},
    {"max", extreme<true>, "[case_sensitive attribute]"},
    {"min", extreme<false>, "[case_sensitive attribute]"},
    {"reject", select<false, false>, "*"},
    {"rejectattr", select<false, true>, "*"},
    {"reverse", reverse},
    {"select", select<true, false>, "*"},
    {"selectattr", select<true, true>, "*"},
    {"slice", slice, "slices [fill_with]"},
    {"sum", sum, "[attribute start]"},
};

}  // namespace

FunctionTable sequence_filters() { return kSequenceFilters; }

}  // namespace tessera::jinja
