// Filters that order and group: dictsort, groupby, sort, unique; and the `attribute` argument of filters.
#include <algorithm>
#include <string>
#include <vector>

#include "jinja/filters/functions.h"
#include "jinja/text/unicode_text.h"
#include "jinja/values/operators.h"

namespace tessera::jinja {
namespace {

Datum folded(Rendering& r, const Datum& value) {
  return value.is_string() ? r.copy_string(to_lower(r.text(value))) : value;
}

struct Keyed {
  Datum key, item;
};

void sort_by_key(Rendering& r, std::vector<Keyed>& items, bool reverse) {
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? less(r, b.key, a.key) : less(r, a.key, b.key);
  });
}

Datum items_of(Rendering& r, const std::vector<Keyed>& keyed) {
  ListBuilder out(r);
  for (const Keyed& entry : keyed) out.push(entry.item);
  return out.finish();
}

bool given_true(const Datum& d) { return !d.is_missing() && is_true(d); }

Datum dict_sort(Rendering& r, const Datum& value, const Arguments& args) {
  const std::string_view by = args.has(1) ? to_string_argument(r, args[1], "dictsort") : "key";
  if (by != "key" && by != "value") r.fail("You can only sort by either \"key\" or \"value\"");
  if (value.is_undefined()) r.fail_undefined(value);
  if (!is_mapping(value)) r.fail("'{}' has no attribute 'items'", object_name(value));
  std::vector<Keyed> items;
  for (int64_t i = 0; i < *size_of(value); ++i) {
    const Entry entry = dict_entry(r, value, i);
    const Datum key = by == "key" ? entry.key : entry.value;
    items.push_back({given_true(args[0]) ? key : folded(r, key), r.make_pair(entry.key, entry.value)});
  }
  sort_by_key(r, items, given_true(args[2]));
  return items_of(r, items);
}

Datum sort(Rendering& r, const Datum& value, const Arguments& args) {
  std::vector<AttributeGetter> getters;
  const bool ignore_case = !given_true(args[1]);
  if (args[2].is_string()) {
    std::string_view rest = r.text(args[2]);
    while (true) {
      const size_t comma = rest.find(',');
      getters.emplace_back(r, string(rest.substr(0, comma)), ignore_case);
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  } else {
    getters.emplace_back(r, args[2], ignore_case);
  }
  const Datum list = to_list(r, value);
  std::vector<Keyed> items;
  for (int64_t i = 0; i < list.list->size; ++i) {
    ListBuilder key(r);
    for (const AttributeGetter& get : getters) key.push(get(list.list->items[i]));
    items.push_back({key.finish(), list.list->items[i]});
  }
  sort_by_key(r, items, given_true(args[0]));
  return items_of(r, items);
}

Datum unique(Rendering& r, const Datum& value, const Arguments& args) {
  const AttributeGetter get(r, args[1], !given_true(args[0]));
  const Datum list = to_list(r, value);
  std::vector<Datum> seen;
  ListBuilder out(r);
  for (int64_t i = 0; i < list.list->size; ++i) {
    const Datum key = get(list.list->items[i]);
    if (key.is(Kind::kList) || key.is(Kind::kDict)) r.fail("unhashable type: '{}'", type_name(key));
    if (std::any_of(seen.begin(), seen.end(), [&](const Datum& other) { return equal(r, other, key); }))
      continue;
    seen.push_back(key);
    out.push(list.list->items[i]);
  }
  return r.make_iterator(out.finish());
}

Datum group_by(Rendering& r, const Datum& value, const Arguments& args) {
  const Datum otherwise = args[1].is(Kind::kNone) ? Datum() : args[1];
  const AttributeGetter get(r, args[0], !given_true(args[2]), otherwise);
  const AttributeGetter get_label(r, args[0], false, otherwise);
  const Datum list = to_list(r, value);
  std::vector<Keyed> items;
  for (int64_t i = 0; i < list.list->size; ++i)
    items.push_back({get(list.list->items[i]), list.list->items[i]});
  sort_by_key(r, items, false);
  ListBuilder groups(r);
  for (size_t begin = 0; begin < items.size();) {
    ListBuilder members(r);
    size_t end = begin;
    for (; end < items.size() && equal(r, items[end].key, items[begin].key); ++end)
      members.push(items[end].item);
    end = std::max(end, begin + 1);  // a NaN is not equal to itself
    Datum group = r.make_pair(get_label(items[begin].item), members.finish());
    group.group = true;
    groups.push(group);
    begin = end;
  }
  return groups.finish();
}

}  // namespace

AttributeGetter::AttributeGetter(Rendering& r, const Datum& attribute, bool ignore_case,
                                 const Datum& default_value)
    : r_(r), ignore_case_(ignore_case), default_value_(default_value) {
  r.hold(sizeof(AttributeGetter));
  if (attribute.is_missing() || attribute.is(Kind::kNone)) return;
  if (!attribute.is_string()) {
    path_.push_back(attribute);
    return;
  }
  std::string_view rest = r.text(attribute);
  while (true) {
    r.hold(2 * sizeof(Datum));
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    const bool is_index =
        !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == std::string_view::npos;
    path_.push_back(is_index ? integer(std::stoll(std::string(part))) : string(part));
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
}

Datum AttributeGetter::operator()(const Datum& value) const {
  r_.step();
  Datum item = value;
  for (const Datum& part : path_) {
    item = get_item(r_, item, part);
    if (item.is_undefined() && !default_value_.is_missing()) item = default_value_;
  }
  return ignore_case_ ? folded(r_, item) : item;
}

namespace {

constexpr FunctionEntry kGroupingFilters[] = {
    {"dictsort", dict_sort, "[case_sensitive by reverse]"},
    {"groupby", group_by, "attribute [default case_sensitive]"},
    {"sort", sort, "[reverse case_sensitive attribute]"},
    {"unique", unique, "[case_sensitive attribute]"},
};

}  // namespace

FunctionTable grouping_filters() { return kGroupingFilters; }

}  // namespace tessera::jinja
