// Elements and slices of values.
#include <algorithm>

#include "jinja/text/unicode_text.h"
#include "jinja/values/operators.h"
#include "jinja/values/text_builder.h"

namespace tessera::jinja {
namespace {

Datum character(Rendering& r, const Datum& text, int64_t index) {
  const std::string_view bytes = r.text(text);
  const size_t begin = is_ascii(bytes) ? static_cast<size_t>(index) : byte_offset(bytes, index);
  size_t end = begin;
  next_code_point(bytes, end);
  return string(bytes.substr(begin, end - begin), text.markup);
}

Datum range_item(const Range& range, int64_t index) { return integer(range.start + index * range.step); }

struct SliceBounds {
  int64_t begin, count, step;
};

SliceBounds slice_bounds(Rendering& r, int64_t size, const Datum& begin, const Datum& end,
                         const Datum& step) {
  const auto given = [](const Datum& d) { return !d.is_missing() && !d.is(Kind::kNone); };
  const auto number_of = [&](const Datum& d) {
    if (d.is_undefined()) r.fail_undefined(d);
    if (!d.is_integral()) r.fail("slice indices must be integers or None, not {}", type_name(d));
    // No string or list is that long, and the arithmetic below stays in range.
    return std::clamp<int64_t>(d.integer, -(int64_t{1} << 40), int64_t{1} << 40);
  };
  const int64_t stride = given(step) ? number_of(step) : 1;
  if (stride == 0) r.fail("slice step cannot be zero");
  const int64_t low = stride > 0 ? 0 : -1;
  const int64_t high = stride > 0 ? size : size - 1;
  const auto clamped = [&](const Datum& d, int64_t otherwise) {
    if (!given(d)) return otherwise;
    const int64_t index = number_of(d);
    return std::clamp(index < 0 ? index + size : index, low, high);
  };
  const int64_t first = clamped(begin, stride > 0 ? low : high);
  const int64_t last = clamped(end, stride > 0 ? high : low);
  const int64_t span = stride > 0 ? last - first : first - last;
  const int64_t magnitude = stride > 0 ? stride : -stride;
  return {first, span <= 0 ? 0 : (span - 1) / magnitude + 1, stride};
}

Datum string_slice(Rendering& r, const Datum& text, const Datum& begin, const Datum& end, const Datum& step) {
  const std::string_view bytes = r.text(text);
  const bool ascii = is_ascii(bytes);
  const int64_t size = ascii ? text.size : count_code_points(bytes);
  const SliceBounds bounds = slice_bounds(r, size, begin, end, step);
  if (bounds.step == 1 || bounds.count <= 1) {
    const auto offset = [&](int64_t index) {
      return ascii ? static_cast<size_t>(index) : byte_offset(bytes, index);
    };
    if (bounds.count == 0) return string({}, text.markup);
    const size_t first = offset(bounds.begin);
    return string(bytes.substr(first, offset(bounds.begin + bounds.count) - first), text.markup);
  }
  // Where each character begins.
  size_t* starts = r.array<size_t>(size + 1);
  int64_t num_starts = 0;
  for (size_t pos = 0; pos < bytes.size() && num_starts < size; next_code_point(bytes, pos))
    starts[num_starts++] = pos;
  starts[num_starts] = bytes.size();
  TextBuilder out(r);
  for (int64_t i = 0; i < bounds.count; ++i) {
    const int64_t at = bounds.begin + i * bounds.step;
    if (at < num_starts) out += bytes.substr(starts[at], starts[at + 1] - starts[at]);
  }
  return out.finish(text.markup);
}

}  // namespace

std::optional<int64_t> size_of(const Datum& value) {
  switch (value.kind) {
    case Kind::kList:
    case Kind::kTuple:
      return value.foreign ? static_cast<int64_t>(value.foreign_list->size()) : value.list->size;
    case Kind::kDict:
      return value.foreign ? static_cast<int64_t>(value.foreign_dict->size()) : value.dict->size;
    case Kind::kRange:
      return value.range->size;
    case Kind::kView:
      return size_of(value.view->dict);
    case Kind::kUndefined:
      return 0;
    default:
      return std::nullopt;
  }
}

std::optional<int64_t> length_of(Rendering& r, const Datum& value) {
  return value.is_string() ? count_code_points(r.text(value)) : size_of(value);
}

Datum list_item(Rendering& r, const Datum& list, int64_t index) {
  if (list.is(Kind::kRange)) return range_item(*list.range, index);
  return list.foreign ? r.import((*list.foreign_list)[static_cast<size_t>(index)]) : list.list->items[index];
}

Entry dict_entry(Rendering& r, const Datum& dict, int64_t index) {
  if (!dict.foreign) return dict.dict->entries[index];
  const Value::Field& field = (*dict.foreign_dict)[static_cast<size_t>(index)];
  return {string(field.name), r.import(field.value)};
}

Datum dict_find(Rendering& r, const Datum& dict, std::string_view key) {
  if (dict.foreign) {
    r.step(1 + static_cast<int64_t>(dict.foreign_dict->size() / 16));
    for (const Value::Field& field : *dict.foreign_dict) {
      if (field.name.size() != key.size()) continue;
      r.step_bytes(std::ssize(key));
      if (field.name == key) return r.import(field.value);
    }
    return {};
  }
  r.step(1 + dict.dict->size / 16);
  for (int64_t i = 0; i < dict.dict->size; ++i) {
    const Entry& entry = dict.dict->entries[i];
    if (entry.key.is_string() && entry.key.size == key.size() && r.text(entry.key) == key) return entry.value;
  }
  return {};
}

Datum dict_find(Rendering& r, const Datum& dict, const Datum& key) {
  if (key.is_string()) return dict_find(r, dict, r.text(key));
  if (dict.foreign) return {};
  for (int64_t i = 0; i < dict.dict->size; ++i) {
    if (equal(r, dict.dict->entries[i].key, key)) return dict.dict->entries[i].value;
  }
  return {};
}

void dict_insert(Rendering& r, Entry* entries, int64_t& size, const Datum& key, const Datum& value) {
  if (key.is(Kind::kList) || key.is(Kind::kDict)) r.fail("unhashable type: '{}'", type_name(key));
  for (int64_t i = 0; i < size; ++i) {
    if (!equal(r, entries[i].key, key)) continue;
    entries[i].value = value;
    return;
  }
  entries[size++] = {key, value};
}

bool is_mapping(const Datum& value) { return value.is(Kind::kDict); }

Datum element(Rendering& r, const Datum& object, int64_t index) {
  const bool indexed = object.is_string() || object.is_sequence() || object.is(Kind::kRange);
  if (!indexed) return {};
  const int64_t size = *length_of(r, object);
  if (index < 0) index += size;
  if (index < 0 || index >= size) return {};
  if (object.is_string()) return character(r, object, index);
  return object.is(Kind::kRange) ? range_item(*object.range, index) : list_item(r, object, index);
}

Datum get_slice(Rendering& r, const Datum& object, const Datum& begin, const Datum& end, const Datum& step) {
  if (object.is_undefined()) r.fail_undefined(object);
  if (object.is_string()) return string_slice(r, object, begin, end, step);
  if (object.is(Kind::kDict)) r.fail("unhashable type: 'slice'");
  if (!object.is_sequence() && !object.is(Kind::kRange)) {
    r.fail("'{}' object is not subscriptable", type_name(object));
  }
  const SliceBounds bounds = slice_bounds(r, *size_of(object), begin, end, step);
  if (object.is(Kind::kRange)) {
    const Range& range = *object.range;
    Datum d = object;
    const int64_t start = range.start + bounds.begin * range.step;
    const int64_t stride = bounds.step * range.step;
    d.range = r.make(Range{start, start + bounds.count * stride, stride, bounds.count});
    return d;
  }
  r.step(bounds.count);
  ListBuilder items(r);
  for (int64_t i = 0; i < bounds.count; ++i) items.push(list_item(r, object, bounds.begin + i * bounds.step));
  return items.finish(object.kind);
}

bool is_iterable(const Datum& value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange:
    case Kind::kView:
    case Kind::kIterator:
      return true;
    default:
      return false;
  }
}

Datum to_list(Rendering& r, const Datum& value) {
  if (value.is_sequence() && !value.foreign) return sequence(value.list);
  if (!is_iterable(value)) r.fail("'{}' object is not iterable", type_name(value));
  ListBuilder items(r);
  if (value.is_string()) {
    const std::string_view text = r.text(value);
    r.step(value.size);
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      next_code_point(text, pos);
      items.push(string(text.substr(begin, pos - begin)));
    }
  } else if (value.is(Kind::kDict) || value.is(Kind::kView)) {
    const Datum& dict = value.is(Kind::kDict) ? value : value.view->dict;
    const ViewKind kind = value.is(Kind::kDict) ? ViewKind::kKeys : value.view->kind;
    r.step(*size_of(dict));
    for (int64_t i = 0; i < *size_of(dict); ++i) {
      const Entry entry = dict_entry(r, dict, i);
      items.push(kind == ViewKind::kKeys     ? entry.key
                 : kind == ViewKind::kValues ? entry.value
                                             : r.make_pair(entry.key, entry.value));
    }
  } else if (value.is(Kind::kIterator)) {
    r.step(value.iterator->size - value.iterator->next);
    while (value.iterator->next < value.iterator->size)
      items.push(value.iterator->items[value.iterator->next++]);
  } else if (!value.is_undefined()) {
    r.step(*size_of(value));
    for (int64_t i = 0; i < *size_of(value); ++i) items.push(list_item(r, value, i));
  }
  return items.finish();
}

}  // namespace tessera::jinja
