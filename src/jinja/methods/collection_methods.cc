// The methods of dict, list and tuple, and of Jinja's cycler.
#include <algorithm>

#include "jinja/methods/methods.h"
#include "jinja/values/operators.h"

namespace tessera::jinja {
namespace {

template <ViewKind kKind>
Datum view(Rendering& r, const Datum& self, const Arguments&) {
  return datum(Kind::kView, &Datum::view, r.make(View{self, kKind}));
}

Datum get(Rendering& r, const Datum& self, const Arguments& args) {
  if (args[0].is(Kind::kList) || args[0].is(Kind::kDict)) r.fail("unhashable type: '{}'", type_name(args[0]));
  const Datum found = dict_find(r, self, args[0]);
  if (!found.is_missing()) return found;
  return args.has(1) ? args[1] : none();
}

Datum copy(Rendering&, const Datum& self, const Arguments&) {
  return self;  // nothing can change either of them
}

Datum list_index(Rendering& r, const Datum& self, const Arguments& args) {
  const int64_t size = *size_of(self);
  const auto bound = [&](size_t i, int64_t otherwise) {
    if (!args.has(i)) return otherwise;
    const int64_t value = std::clamp<int64_t>(to_integer(r, args[i], "index"), -size - 1, size);
    return value < 0 ? std::max<int64_t>(0, value + size) : value;
  };
  for (int64_t i = bound(1, 0); i < bound(2, size); ++i) {
    if (equal(r, list_item(r, self, i), args[0])) return integer(i);
  }
  r.fail("the value is not in the {}", type_name(self));
}

Datum list_count(Rendering& r, const Datum& self, const Arguments& args) {
  const Datum value = args[0];
  int64_t count = 0;
  for (int64_t i = 0; i < *size_of(self); ++i) count += equal(r, list_item(r, self, i), value) ? 1 : 0;
  return integer(count);
}

Datum cycler_next(Rendering&, const Datum& self, const Arguments&) {
  Cycler& cycler = *self.cycler;
  const Datum item = cycler.items[cycler.next];
  cycler.next = (cycler.next + 1) % cycler.size;
  return item;
}

Datum cycler_reset(Rendering&, const Datum& self, const Arguments&) {
  self.cycler->next = 0;
  return none();
}

constexpr FunctionEntry kDictMethods[] = {
    {"get", get, "key [default]"},
    {"items", view<ViewKind::kItems>},
    {"keys", view<ViewKind::kKeys>},
    {"values", view<ViewKind::kValues>},
    {"copy", copy},
    {"clear", refused_method, "*"},
    {"pop", refused_method, "*"},
    {"popitem", refused_method, "*"},
    {"setdefault", refused_method, "*"},
    {"update", refused_method, "*"},
};

constexpr FunctionEntry kListMethods[] = {
    {"index", list_index, "value [start stop]"},
    {"count", list_count, "value"},
    {"copy", copy},
    {"append", refused_method, "*"},
    {"clear", refused_method, "*"},
    {"pop", refused_method, "*"},
    {"reverse", refused_method, "*"},
    {"insert", refused_method, "*"},
    {"sort", refused_method, "*"},
    {"extend", refused_method, "*"},
    {"remove", refused_method, "*"},
};

constexpr FunctionEntry kCyclerMethods[] = {{"next", cycler_next}, {"reset", cycler_reset}};

}  // namespace

Datum refused_method(Rendering& r, const Datum& self, const Arguments&) {
  r.fail("a method that would change a {} is refused", type_name(self));
}

const FunctionEntry* find_dict_method(std::string_view name) { return find_function(kDictMethods, name); }
const FunctionEntry* find_list_method(std::string_view name) { return find_function(kListMethods, name); }
const FunctionEntry* find_cycler_method(std::string_view name) { return find_function(kCyclerMethods, name); }

bool is_refused_list_method(std::string_view name) {
  const FunctionEntry* entry = find_list_method(name);
  return entry != nullptr && (entry->is(refused_method) || name == "copy");
}

}  // namespace tessera::jinja
