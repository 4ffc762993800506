#include "settings/deepspeed/deepspeed_keys.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/json_value.h"
#include "base/name_hint.h"
#include "base/text.h"
#include "settings/compat/compat_flags.h"
#include "settings/compat/compat_table.h"

namespace tessera {
namespace {

const CompatTable& deepspeed_table() { return compat_table("deepspeed"); }

std::optional<Json> as_integer(const Json& value, bool may_be_negative) {
  constexpr double kLargest = 0x1p53;  // above, not every whole number is a double
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
    return std::numeric_limits<int64_t>::max();  // sys.maxsize and more: no limit
  if (value.is_number_float()) {
    const double real = value.get<double>();
    if (real != std::floor(real) || std::abs(real) > kLargest) return std::nullopt;
    return as_integer(static_cast<int64_t>(real), may_be_negative);
  }
  if (!value.is_number_integer() || (!may_be_negative && value.get<int64_t>() < 0)) return std::nullopt;
  return value.get<int64_t>();
}

struct KeyType {
  std::string_view name;
  const char* expected;
  bool is_scalar;
  std::optional<Json> (*convert)(const Json& value);  // nullopt if the value has a different type
};

template <bool (Json::*kIs)() const noexcept>
std::optional<Json> if_it_is(const Json& value) {
  return (value.*kIs)() ? std::optional<Json>(value) : std::nullopt;
}

constexpr KeyType kKeyTypes[] = {
    {"bool", "true or false", true, if_it_is<&Json::is_boolean>},
    {"count", "a whole number of at least 0", true,
     [](const Json& value) { return as_integer(value, false); }},
    {"integer", "a whole number", true, [](const Json& value) { return as_integer(value, true); }},
    {"number", "a finite number", true,
     [](const Json& value) {
       const bool is_finite = value.is_number() && std::isfinite(value.get<double>());
       return is_finite ? std::optional<Json>(value) : std::nullopt;
     }},
    {"text", "a string", false, if_it_is<&Json::is_string>},
    {"list", "a list", false, if_it_is<&Json::is_array>},
    {"object", "an object { ... }", false, if_it_is<&Json::is_object>},
    {"any", "a value", false, [](const Json& value) { return std::optional<Json>(value); }},
};

// A line of the table with the words of its type.
class Key {
 public:
  explicit Key(const CompatName& name) : name_(name), words_(split(name.type, ' ')) {
    const auto found = std::ranges::find(kKeyTypes, words_[0], &KeyType::name);
    TESSERA_CHECK(found != std::end(kKeyTypes), "{}: no type '{}'", name.name, name.type);
    type_ = found;
  }

  const CompatName& name() const { return name_; }
  std::string canonical() const { return std::string(name_.name.substr(name_.name.rfind('.') + 1)); }
  const char* expected() const { return type_->expected; }
  bool has(std::string_view word) const { return std::ranges::find(words_, word) != words_.end(); }
  bool is_object() const { return type_->name == "object"; }
  bool takes_auto() const { return has("auto") && !is_object(); }

  // The value in its type. Also takes spellings that DeepSpeed's pydantic accepts: "5e8", "true", 1 and 0.
  std::optional<Json> convert(const Json& value, bool* was_text) const {
    if (std::optional<Json> exact = type_->convert(value)) return exact;
    const bool is_bool = type_->name == "bool";
    if (value.is_string() && type_->is_scalar) {
      std::string text = value.get<std::string>();
      *was_text = true;
      if (is_bool && (text == "True" || text == "False")) text = lower_case(text);
      const Json inner = Json::parse(text, nullptr, /*allow_exceptions=*/false);
      return inner.is_discarded() ? std::nullopt : type_->convert(inner);
    }
    if (is_bool && value.is_number_integer() && (value == 0 || value == 1)) return value == 1;
    return std::nullopt;
  }

 private:
  const CompatName& name_;
  std::vector<std::string> words_;
  const KeyType* type_;
};

class KeyChecker {
 public:
  KeyChecker(const std::string& origin, std::vector<DeepSpeedNote>* notes)
      : origin_(origin), notes_(*notes) {}

  Json check_all(const Json& whole) {
    Json out = check(whole, "", nullptr);
    if (!mistakes_.empty()) fail_all(ExitCode::kBadConfig, mistakes_);
    return out;
  }

 private:
  // `section`: the key of the object, whose path with a dot is `prefix`; nullptr for the whole.
  Json check(const Json& object, const std::string& prefix, const Key* section) {
    Json out = Json::object();
    for (const auto& [name, value] : object.items()) {
      try {
        check_key(object, prefix, section, name, value, &out);
      } catch (const Error& error) {
        if (error.code() != ExitCode::kBadConfig) throw;
        mistakes_.push_back(error.what());
      }
    }
    return out;
  }

  void check_key(const Json& object, const std::string& prefix, const Key* section, const std::string& name,
                 const Json& value, Json* out) {
    const std::string path = prefix + name;
    const CompatName* known = name.find('.') == std::string::npos ? deepspeed_table().find(path) : nullptr;
    if (known == nullptr) return note_unknown(prefix, section, name);
    if (known->use == CompatUse::kSame) {  // another name
      const std::string canonical(known->detail.substr(prefix.size()));
      if (object.contains(canonical))
        fail_at(path, fmt::format("is another name for {}: give only one", known->detail));
      known = deepspeed_table().find(known->detail);
    }
    const Key key(*known);
    if (!value.is_null()) return check_value(key, section, path, value, out);
    const bool is_used = known->use == CompatUse::kRead || known->use == CompatUse::kSets;
    if (is_used && !key.has("null")) {
      fail_at(path,
              fmt::format("expected {}, found null, which DeepSpeed does not take for its default; leave "
                          "the key out",
                          key.expected()));
    }
  }

  [[noreturn]] void fail_at(const std::string& path, const std::string& message) const {
    fail(ExitCode::kBadConfig, "{}: {}: {}", origin_, printable(path), message);
  }

  void note_unknown(const std::string& prefix, const Key* section, const std::string& name) {
    std::vector<std::string> known;
    for (const CompatName& key : deepspeed_table().names) {
      const std::string_view last = key.name.substr(std::min(prefix.size(), key.name.size()));
      if (key.name.starts_with(prefix) && key.use != CompatUse::kSame && last.find('.') == last.npos)
        known.emplace_back(last);
    }
    const std::string hint =
        hint_for_name(name, known, known, compat_hints("deepspeed_hints")).text("'", "'");
    if (section != nullptr && section->has("strict"))
      fail_at(prefix + name, "unknown key, which DeepSpeed rejects too" + hint);
    notes_.push_back({printable(prefix + name), "unknown key, ignored as DeepSpeed does" + hint, true});
  }

  void check_value(const Key& key, const Key* section, const std::string& path, const Json& value,
                   Json* out) {
    if (value == "auto" && (key.takes_auto() || (section != nullptr && section->has("auto")))) {
      if (key.takes_auto()) (*out)[key.canonical()] = value;
      return;
    }
    bool was_text = false;
    const std::optional<Json> converted = key.convert(value, &was_text);
    if (!converted)
      fail_at(path, fmt::format("expected {}{}, found {}", key.expected(),
                                key.takes_auto() ? " or \"auto\"" : "", found_text(value)));
    if (was_text)
      notes_.push_back({path,
                        fmt::format("{} is a string, read as {}", printable(value.dump()), converted->dump()),
                        true});
    const CompatName& name = key.name();
    const std::string text = converted->is_string() ? converted->get<std::string>() : converted->dump();
    if (name.use == CompatUse::kRefused && (text.empty() || !name.accepts(text)))
      fail_at(path, fmt::format("{} is not supported: {}", printable(converted->dump()), name.detail));
    if (name.use == CompatUse::kRefused || name.use == CompatUse::kSilent) return;
    if (name.use == CompatUse::kNoEffect) notes_.push_back({path, std::string(name.detail)});
    const Json checked =
        key.is_object() && has_listed_keys(name.name) ? check(*converted, path + ".", &key) : *converted;
    if (name.use != CompatUse::kNoEffect) (*out)[key.canonical()] = checked;
  }

  static bool has_listed_keys(std::string_view section) {
    const std::string prefix = fmt::format("{}.", section);
    return std::ranges::any_of(deepspeed_table().names,
                               [&](const CompatName& key) { return key.name.starts_with(prefix); });
  }

  const std::string& origin_;
  std::vector<DeepSpeedNote>& notes_;
  std::vector<std::string> mistakes_;
};

}  // namespace

Json check_deepspeed_keys(const Json& whole, const std::string& origin, std::vector<DeepSpeedNote>* notes) {
  return KeyChecker(origin, notes).check_all(whole);
}

}  // namespace tessera
