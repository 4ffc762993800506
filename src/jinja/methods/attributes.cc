// x.name and x[index], methods among them.
#include "jinja/methods/methods.h"
#include "jinja/values/operators.h"

namespace tessera::jinja {
namespace {

const FunctionEntry* find_method(const Datum& object, std::string_view name) {
  if (object.is_string()) return find_string_method(name);
  if (object.is(Kind::kDict)) return find_dict_method(name);
  return object.is_sequence() ? find_list_method(name) : nullptr;
}

// Missing if `object` has no attribute of this name; elements are not looked at.
Datum own_attribute(Rendering& r, const Datum& object, std::string_view name) {
  if (object.is(Kind::kNamespace)) {
    r.step(1 + object.name_space->size / 16);
    for (int64_t i = 0; i < object.name_space->size; ++i) {
      const Entry& entry = object.name_space->entries[i];
      if (entry.key.is_string() && entry.key.size == name.size() && r.text(entry.key) == name)
        return entry.value;
    }
    return {};
  }
  if (object.is(Kind::kLoop)) return object.loop->attribute(name);
  if (object.is(Kind::kCycler)) {
    if (name == "current") return object.cycler->items[object.cycler->next];
    return bound_method(r, object, find_cycler_method(name));
  }
  if (object.is(Kind::kMacro) && name == "name") return string(object.macro->name);
  if (object.group && (name == "grouper" || name == "list"))
    return object.list->items[name == "list" ? 1 : 0];
  if (object.is(Kind::kTuple) && is_refused_list_method(name)) return {};
  const Datum method = bound_method(r, object, find_method(object, name));
  const bool is_special =
      name.size() > 4 && name.substr(0, 2) == "__" && name.substr(name.size() - 2) == "__";
  return method.is_missing() && is_special ? r.missing_attribute(object, r.copy_string(name), true) : method;
}

}  // namespace

Datum bound_method(Rendering& r, const Datum& object, const FunctionEntry* entry) {
  if (entry == nullptr) return {};
  if (entry->is(refused_method)) return r.missing_attribute(object, string(entry->name), /*unsafe=*/true);
  return datum(Kind::kMethod, &Datum::method, r.make(Method{object, entry}));
}

Datum get_item(Rendering& r, const Datum& object, const Datum& index) {
  if (object.is_undefined()) r.fail_undefined(object);
  Datum found;
  if (object.is(Kind::kDict)) {
    const bool hashable = !index.is(Kind::kList) && !index.is(Kind::kDict);
    if (hashable) found = dict_find(r, object, index);
  } else if (index.is_integral()) {
    found = element(r, object, index.integer);
  }
  if (found.is_missing() && index.is_string()) found = own_attribute(r, object, r.text(index));
  return found.is_missing() ? r.missing_attribute(object, index) : found;
}

Datum get_own_attribute(Rendering& r, const Datum& object, std::string_view name) {
  const Datum found = own_attribute(r, object, name);
  return found.is_missing() ? r.missing_attribute(object, r.copy_string(name)) : found;
}

Datum get_attribute(Rendering& r, const Datum& object, std::string_view name) {
  if (object.is_undefined()) r.fail_undefined(object);
  Datum found = own_attribute(r, object, name);
  const bool refused = found.is_undefined() && object.is(Kind::kDict) && name.substr(0, 2) == "__";
  if ((found.is_missing() || refused) && object.is(Kind::kDict)) {
    const Datum item = dict_find(r, object, name);
    if (!item.is_missing()) return item;
  }
  return found.is_missing() ? r.missing_attribute(object, r.copy_string(name)) : found;
}

}  // namespace tessera::jinja
