#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/json_value.h"
#include "base/mistakes.h"
#include "base/name_hint.h"
#include "base/text.h"
#include "formats/deepspeed/deepspeed_keys.h"

namespace tessera {
namespace {

using Type = DeepSpeedType;
using Treatment = DeepSpeedTreatment;

const char* expected_text(Type type) {
  switch (type) {
    case Type::kBool:
      return "true or false";
    case Type::kCount:
      return "a whole number of at least 0";
    case Type::kInteger:
      return "a whole number";
    case Type::kNumber:
      return "a finite number";
    case Type::kText:
      return "a string";
    case Type::kList:
      return "a list";
    case Type::kObject:
      return "an object { ... }";
    case Type::kAny:
      break;
  }
  return "a value";
}

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

// The value in its type; nullopt if it has a different type.
std::optional<Json> convert_exact(const Json& value, Type type) {
  switch (type) {
    case Type::kBool:
      return value.is_boolean() ? std::optional<Json>(value) : std::nullopt;
    case Type::kCount:
      return as_integer(value, /*may_be_negative=*/false);
    case Type::kInteger:
      return as_integer(value, /*may_be_negative=*/true);
    case Type::kNumber:
      return value.is_number() && std::isfinite(value.get<double>()) ? std::optional<Json>(value)
                                                                     : std::nullopt;
    case Type::kText:
      return value.is_string() ? std::optional<Json>(value) : std::nullopt;
    case Type::kList:
      return value.is_array() ? std::optional<Json>(value) : std::nullopt;
    case Type::kObject:
      return value.is_object() ? std::optional<Json>(value) : std::nullopt;
    case Type::kAny:
      break;
  }
  return value;
}

// Like convert_exact, but also accepts spellings that DeepSpeed's pydantic accepts: "5e8", "true", 1 and 0.
std::optional<Json> convert(const Json& value, Type type, bool* was_text) {
  if (std::optional<Json> exact = convert_exact(value, type)) return exact;
  const bool scalar =
      type == Type::kBool || type == Type::kCount || type == Type::kInteger || type == Type::kNumber;
  if (value.is_string() && scalar) {
    std::string text = value.get<std::string>();
    *was_text = true;
    if (type == Type::kBool && (text == "True" || text == "False")) text[0] = text[0] == 'T' ? 't' : 'f';
    const Json inner = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    return inner.is_discarded() ? std::nullopt : convert_exact(inner, type);
  }
  if (type == Type::kBool && value.is_number_integer() && (value == 0 || value == 1)) return value == 1;
  return std::nullopt;
}

class KeyChecker {
 public:
  KeyChecker(const std::string& origin, std::vector<DeepSpeedNote>* notes) : origin_(origin), notes_(notes) {}

  // Reports all mistakes in the object in one error.
  Json check_all(const Json& object, const DeepSpeedSection& section, const std::string& prefix) {
    Json out = check(object, section, prefix);
    if (!mistakes_.empty()) fail_all(ExitCode::kBadConfig, mistakes_);
    return out;
  }

 private:
  Json check(const Json& object, const DeepSpeedSection& section, const std::string& prefix) {
    Json out = Json::object();
    for (const auto& [name, value] : object.items()) {
      try {
        check_key(object, section, prefix, name, value, &out);
      } catch (const Error& error) {
        if (error.code() != ExitCode::kBadConfig) throw;
        mistakes_.push_back(error.what());
      }
    }
    return out;
  }

  void check_key(const Json& object, const DeepSpeedSection& section, const std::string& prefix,
                 const std::string& name, const Json& value, Json* out) {
    const std::string path = prefix + name;
    const DeepSpeedKey* key = find(section, name);
    if (key == nullptr) return note_unknown(section, name, path);
    if (key->alias != nullptr && name == key->alias && object.contains(key->name))
      fail_at(path, fmt::format("is another name for {}{}: give only one", prefix, key->name));
    if (!value.is_null()) return check_value(*key, section, path, value, out);
    if (key->treatment == Treatment::kUsed && !key->takes_null)
      fail_at(path,
              fmt::format("expected {}, found null, which DeepSpeed does not take for its default; leave "
                          "the key out",
                          expected_text(key->type)));
  }

  static const DeepSpeedKey* find(const DeepSpeedSection& section, const std::string& name) {
    const auto is_it = [&](const DeepSpeedKey& key) {
      return name == key.name || (key.alias != nullptr && name == key.alias);
    };
    const auto found = std::find_if(section.keys.begin(), section.keys.end(), is_it);
    return found == section.keys.end() ? nullptr : &*found;
  }

  [[noreturn]] void fail_at(const std::string& path, const std::string& message) const {
    fail(ExitCode::kBadConfig, "{}: {}: {}", origin_, printable(path), message);
  }

  void note_unknown(const DeepSpeedSection& section, const std::string& name, const std::string& path) {
    std::vector<std::string> known;
    for (const DeepSpeedKey& key : section.keys) known.emplace_back(key.name);
    const std::string hint = hint_for_name(name, known, known, section.foreign).text("'", "'");
    if (section.strict) fail_at(path, "unknown key, which DeepSpeed rejects too" + hint);
    notes_->push_back({printable(path), "unknown key, ignored as DeepSpeed does" + hint, true});
  }

  void check_value(const DeepSpeedKey& key, const DeepSpeedSection& section, const std::string& path,
                   const Json& value, Json* out) {
    if (value == "auto" && (key.takes_auto || section.drops_auto)) {
      if (key.takes_auto) (*out)[key.name] = value;
      return;
    }
    bool was_text = false;
    const std::optional<Json> converted = convert(value, key.type, &was_text);
    if (!converted)
      fail_at(path, fmt::format("expected {}{}, found {}", expected_text(key.type),
                                key.takes_auto ? " or \"auto\"" : "", found_text(value)));
    if (was_text)
      notes_->push_back(
          {path, fmt::format("{} is a string, read as {}", printable(value.dump()), converted->dump()),
           true});
    switch (key.treatment) {
      case Treatment::kUsed:
        (*out)[key.name] = key.section ? check(*converted, *key.section, path + ".") : *converted;
        break;
      case Treatment::kRefused:
        if (key.harmless == nullptr || *converted != Json::parse(key.harmless))
          fail_at(path, fmt::format("{} is not supported: {}", printable(converted->dump()), key.reason));
        break;
      case Treatment::kNoEffect:
        notes_->push_back({path, key.reason});
        if (key.section) check(*converted, *key.section, path + ".");
        break;
      case Treatment::kSilent:
        break;
    }
  }

  const std::string& origin_;
  std::vector<DeepSpeedNote>* notes_;
  std::vector<std::string> mistakes_;
};

void add_names(const DeepSpeedSection& section, const std::string& prefix, std::vector<std::string>* names) {
  for (const DeepSpeedKey& key : section.keys) {
    names->push_back(prefix + key.name);
    if (key.section) add_names(*key.section, prefix + key.name + ".", names);
  }
}

}  // namespace

std::vector<std::string> deepspeed_key_names() {
  std::vector<std::string> names;
  add_names(kDeepSpeedTopLevel, "", &names);
  add_names(kDeepSpeedOptimizerParams, "optimizer.params.", &names);
  add_names(kDeepSpeedSchedulerParams, "scheduler.params.", &names);
  return names;
}

Json check_deepspeed_keys(const Json& object, const DeepSpeedSection& section, const std::string& origin,
                          std::vector<DeepSpeedNote>* notes, const std::string& prefix) {
  return KeyChecker(origin, notes).check_all(object, section, prefix);
}

}  // namespace tessera
