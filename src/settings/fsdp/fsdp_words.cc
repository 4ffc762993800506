#include "settings/fsdp/fsdp_words.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json_value.h"
#include "base/text.h"
#include "settings/compat/compat_flags.h"
#include "settings/compat/compat_table.h"
#include "settings/foreign/foreign_settings.h"

namespace tessera {
namespace {

// In the order of torch.distributed.fsdp.ShardingStrategy, whose values begin with 1.
constexpr std::pair<std::string_view, const char*> kStages[] = {{"full_shard", "3"},
                                                                {"shard_grad_op", "2"},
                                                                {"no_shard", "0"},
                                                                {"hybrid_shard", "3"},
                                                                {"hybrid_shard_zero2", "2"}};

enum class KeyKind { kBool, kCount, kWord, kVersion, kStrategy, kReshard, kClasses, kPrecision, kAny };
struct FsdpKey {
  std::string_view name;
  KeyKind kind;
  std::string_view words = "";  // of kWord; accelerate also takes their number, from 1
};
constexpr std::string_view kStateDictWords = "FULL_STATE_DICT|LOCAL_STATE_DICT|SHARDED_STATE_DICT";
constexpr FsdpKey kKeys[] = {
    {"activation_checkpointing", KeyKind::kBool},
    {"activation_checkpointing_offload", KeyKind::kBool},
    {"auto_wrap_policy", KeyKind::kWord, "TRANSFORMER_BASED_WRAP|SIZE_BASED_WRAP|NO_WRAP"},
    {"backward_prefetch", KeyKind::kWord, "BACKWARD_PRE|BACKWARD_POST|NO_PREFETCH"},
    {"cpu_offload", KeyKind::kBool},
    {"cpu_offload_pin_memory", KeyKind::kBool},
    {"cpu_ram_efficient_loading", KeyKind::kBool},
    {"final_state_dict_type", KeyKind::kWord, kStateDictWords},
    {"forward_prefetch", KeyKind::kBool},
    {"limit_all_gathers", KeyKind::kBool},
    {"min_num_params", KeyKind::kCount},
    {"mixed_precision_policy", KeyKind::kPrecision},
    {"offload_params", KeyKind::kBool},
    {"reshard_after_forward", KeyKind::kReshard},
    {"sharding_strategy", KeyKind::kStrategy},
    {"state_dict_type", KeyKind::kWord, kStateDictWords},
    {"sync_module_states", KeyKind::kBool},
    {"transformer_cls_names_to_wrap", KeyKind::kClasses},
    {"transformer_layer_cls_to_wrap", KeyKind::kClasses},
    {"use_orig_params", KeyKind::kBool},
    {"version", KeyKind::kVersion},
    {"xla", KeyKind::kBool},
    {"xla_fsdp_grad_ckpt", KeyKind::kBool},
    {"xla_fsdp_v2", KeyKind::kBool}};

std::string upper_case(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return text;
}

// The words of str_to_bool() in Transformers as "true" or "false"; "" for others.
std::string bool_word(const std::string& text) {
  static constexpr std::string_view kTrue[] = {"y", "yes", "t", "true", "on", "1"},
                                    kFalse[] = {"n", "no", "f", "false", "off", "0"};
  const std::string word = lower_case(text);
  if (std::ranges::find(kTrue, word) != std::end(kTrue)) return "true";
  return std::ranges::find(kFalse, word) != std::end(kFalse) ? "false" : "";
}

// A strategy by its name or number; "" if there is none.
std::string strategy_named(const std::string& text) {
  std::string word = lower_case(text);
  if (word.starts_with("_hybrid")) word.erase(0, 1);  // PyTorch's own spelling of hybrid_shard_zero2
  for (size_t i = 0; i < std::size(kStages); ++i) {
    if (word == kStages[i].first || word == std::to_string(i + 1)) return std::string(kStages[i].first);
  }
  return "";
}

// The ends of the names OBJECT.KEY, for messages.
std::string known_names(const std::string& object) {
  std::vector<std::string_view> names;
  for (const CompatName& each : compat_table("transformers").names) {
    if (each.name.starts_with(object + ".")) names.push_back(each.name.substr(object.size() + 1));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

bool is_nothing_word(const std::string& word) { return word.empty() || word == "none" || word == "null"; }

// A type of mixed_precision_policy as accelerate or PyTorch spells it: bf16 or fp32; "" for others.
std::string precision_word(const Json& value) {
  const std::string word = value.is_string() ? value.get<std::string>() : "";
  if (word == "bf16" || word == "bfloat16" || word == "torch.bfloat16") return "bf16";
  if (word == "fp32" || word == "float32" || word == "torch.float32") return "fp32";
  return "";
}

// Reads the values of --fsdp_config.
class FsdpConfigReader {
 public:
  explicit FsdpConfigReader(FsdpArguments* out) : out_(*out) {}

  void read(const std::string& text) {
    out_.config.clear();
    out_.config_file.clear();
    const std::optional<Json> object = object_of_flag("fsdp_config", text);
    if (!object) return;
    if (!object->is_object()) {
      fail(ExitCode::kUsage, "--fsdp_config: expected a JSON object, found {}", found_text(*object));
    }
    if (text.find('{') != text.find_first_not_of(" \t\r\n")) out_.config_file = text;
    for (const auto& [name, value] : object->items()) {
      if (!value.is_null()) read_key(name, value);
    }
  }

 private:
  [[noreturn]] static void fail_key(const std::string& key, const std::string& message) {
    fail(ExitCode::kUsage, "--fsdp_config: {}: {}", key, message);
  }
  [[noreturn]] static void fail_value(const std::string& key, const std::string& expected,
                                      const Json& found) {
    fail_key(key, fmt::format("expected {}, found {}", expected, found_text(found)));
  }

  void read_key(const std::string& name, const Json& value) {
    const std::string key = name.starts_with("fsdp_") ? name.substr(5) : name;  // accelerate's spelling
    const CompatName* known = compat_table("transformers").find("fsdp_config." + key);
    if (known == nullptr) {
      fail(ExitCode::kUsage, "--fsdp_config: unknown key '{}'; there are {}", printable(name),
           known_names("fsdp_config"));
    }
    const auto found = std::ranges::find(kKeys, key, &FsdpKey::name);
    const std::string text = found == std::end(kKeys) ? word_of_value(value) : value_text(key, *found, value);
    if (known->use == CompatUse::kRefused && !known->accepts(text))
      fail_key(key, fmt::format("{} is not supported: {}", printable(text, 80), known->detail));
    if (!out_.config.emplace(key, text).second)
      fail_key(key, "given twice, with the prefix fsdp_ and without");
  }

  std::string value_text(const std::string& key, const FsdpKey& known, const Json& value) {
    const std::string text = word_of_value(value);
    const std::string as_bool = value.is_structured() ? "" : bool_word(text);
    const std::string strategy = value.is_structured() ? "" : strategy_named(text);
    switch (known.kind) {
      case KeyKind::kBool:
        if (as_bool.empty()) fail_value(key, "true or false", value);
        return as_bool;
      case KeyKind::kCount:
        if (const auto count = parse_integer(text); !count || *count < 0)
          fail_value(key, "a number of parameters", value);
        return text;
      case KeyKind::kVersion:
        if (text != "1" && text != "2") fail_value(key, "1 or 2", value);
        return text;
      case KeyKind::kWord:
        return word_in(key, known, value);
      case KeyKind::kReshard:
        if (!as_bool.empty()) return as_bool;
        [[fallthrough]];
      case KeyKind::kStrategy:
        if (strategy.empty()) {
          fail_value(key,
                     fmt::format("{}full_shard, shard_grad_op, no_shard, hybrid_shard or hybrid_shard_zero2",
                                 known.kind == KeyKind::kReshard ? "true, false, " : ""),
                     value);
        }
        return strategy;
      case KeyKind::kClasses:
        read_classes(key, value);
        return text;
      case KeyKind::kPrecision:
        return precision_of(key, value);
      case KeyKind::kAny:
        break;
    }
    return text;
  }

  static std::string word_in(const std::string& key, const FsdpKey& known, const Json& value) {
    const std::string text = upper_case(word_of_value(value));
    const std::vector<std::string> words = split(std::string(known.words), '|');
    for (size_t i = 0; i < words.size(); ++i) {
      if (text == words[i] || text == std::to_string(i + 1)) return words[i];
    }
    fail_value(key, fmt::format("{}", fmt::join(words, ", ")), value);
  }

  void read_classes(const std::string& key, const Json& value) {
    std::vector<Json> names = {value};
    if (value.is_array()) names.assign(value.begin(), value.end());
    for (const Json& name : names) {
      if (!name.is_string()) fail_value(key, "names of classes", value);
      add_layer_classes(name.get<std::string>(), &out_);
    }
  }

  // "PARAMETERS REDUCTIONS": the types of a policy, each bf16 or fp32.
  static std::string precision_of(const std::string& key, const Json& value) {
    const auto word = [&](const Json& of) {
      const std::string found = precision_word(of);
      if (found.empty())
        fail_value(key, "bf16 or fp32, or an object of them by param_dtype and reduce_dtype", of);
      return found;
    };
    if (!value.is_object()) return fmt::format("{0} {0}", word(value));
    std::string params, reductions;
    for (const auto& [name, of] : value.items()) {
      if (name == "param_dtype") {
        params = word(of);
      } else if (name == "reduce_dtype") {
        reductions = word(of);
      } else if (name != "buffer_dtype" && name != "output_dtype") {
        fail_key(key, fmt::format("unknown key '{}'", printable(name)));
      } else {
        word(of);
      }
    }
    if (params.empty()) fail_key(key, "expected param_dtype in it");
    return fmt::format("{} {}", params, reductions.empty() ? params : reductions);
  }

  FsdpArguments& out_;
};

}  // namespace

void read_fsdp_words(const std::vector<std::string>& values, FsdpArguments* out) {
  std::string text = fmt::format("{}", fmt::join(values, " "));
  std::ranges::replace(text, ',', ' ');
  std::vector<std::string> words = split(text, ' ');
  std::erase(words, "");
  FsdpArguments read;
  bool is_off = false;
  for (const std::string& given : words) {
    const std::string word = lower_case(given);
    const std::string as_bool = bool_word(word);
    if (is_nothing_word(word) || as_bool == "false") {
      is_off = true;
      continue;
    }
    read.is_on = true;
    if (as_bool == "true" || word == "auto_wrap") continue;
    const bool is_number = word[0] >= '0' && word[0] <= '9';  // accelerate's, of sharding_strategy
    const std::string strategy = is_number ? "" : strategy_named(word);
    if (word == "offload") {
      read.offloads = true;
    } else if (strategy.empty()) {
      fail(ExitCode::kUsage, "--fsdp: expected some of {}, found '{}'", known_names("fsdp"),
           printable(given));
    } else if (!read.strategy.empty() && read.strategy != strategy) {
      fail(ExitCode::kUsage, "--fsdp: expected one strategy, found {} and {}", read.strategy, strategy);
    } else {
      read.strategy = strategy;
    }
  }
  if (is_off && read.is_on) fail(ExitCode::kUsage, "--fsdp: false stands alone, found '{}'", printable(text));
  out->is_on = read.is_on;
  out->strategy = read.strategy;
  out->offloads = read.offloads;
  out->words = fmt::format("{}", fmt::join(words, " "));
}

void read_fsdp_config(const std::string& text, FsdpArguments* out) { FsdpConfigReader(out).read(text); }

void add_layer_classes(const std::string& text, FsdpArguments* out) {
  for (const std::string& name : split_list(text)) {
    if (std::ranges::find(out->layer_classes, name) == out->layer_classes.end())
      out->layer_classes.push_back(name);
  }
}

const char* stage_of_strategy(const std::string& strategy) {
  return std::ranges::find(kStages, strategy, &std::pair<std::string_view, const char*>::first)->second;
}

bool needs_version_1(const std::string& strategy) {
  return !strategy.empty() && strategy != "full_shard" && strategy != "shard_grad_op";
}

}  // namespace tessera
