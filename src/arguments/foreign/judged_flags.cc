#include "arguments/foreign/judged_flags.h"

#include <algorithm>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/json.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr int64_t kMaxJudgedBytes = 1 << 20;

bool is_nothing(std::string_view value) {
  const std::string word = lower_case(std::string(value));
  return word.empty() || word == "none" || word == "null";
}

// A key of an object: values other than `harmless` are refused, or without effect.
struct JudgedKey {
  const char* name;
  const char* harmless;  // JSON values separated by spaces, beside null
  FlagStatus status;
  const char* note;
};

constexpr FlagStatus kRefusedKey = FlagStatus::kRefused;
constexpr FlagStatus kIgnoredKey = FlagStatus::kIgnored;

constexpr JudgedKey kAcceleratorKeys[] = {
    {"split_batches", "false", kRefusedKey, "per_device_train_batch_size is the size of a micro-batch"},
    {"dispatch_batches", "false", kIgnoredKey, "rows are read from a cache file, without loader processes"},
    {"even_batches", "true", kRefusedKey, "every rank takes part in every step"},
    {"use_seedable_sampler", "true", kRefusedKey, "rows are drawn as by Accelerate's seedable sampler"},
    {"non_blocking", "false", kIgnoredKey, "it applies only to GPUs and other accelerators"},
    {"gradient_accumulation_kwargs", "{}", kRefusedKey, "write gradient_accumulation_steps"},
    {"use_configured_state", "false", kIgnoredKey, "there is one state per process"},
};

constexpr const char* kNoFsdp = "zero_stage decides what is sharded";
constexpr const char* kNoXla = "there is no XLA";
constexpr JudgedKey kFsdpKeys[] = {
    {"min_num_params", "0", kIgnoredKey, kNoFsdp},
    {"transformer_layer_cls_to_wrap", "[]", kIgnoredKey, kNoFsdp},
    {"version", "", kIgnoredKey, kNoFsdp},
    {"reshard_after_forward", "", kIgnoredKey, kNoFsdp},
    {"cpu_offload", "false", kIgnoredKey, kNoFsdp},
    {"auto_wrap_policy", "", kIgnoredKey, kNoFsdp},
    {"backward_prefetch", "", kIgnoredKey, kNoFsdp},
    {"forward_prefetch", "false", kIgnoredKey, kNoFsdp},
    {"limit_all_gathers", "false", kIgnoredKey, kNoFsdp},
    {"use_orig_params", "", kIgnoredKey, kNoFsdp},
    {"sync_module_states", "", kIgnoredKey, kNoFsdp},
    {"cpu_ram_efficient_loading", "", kIgnoredKey, kNoFsdp},
    {"activation_checkpointing", "false", kIgnoredKey, "the flag gradient_checkpointing decides"},
    {"state_dict_type", "", kIgnoredKey, kNoFsdp},
    {"xla", "false", kIgnoredKey, kNoXla},
    {"xla_fsdp_v2", "false", kIgnoredKey, kNoXla},
    {"xla_fsdp_settings", "{}", kIgnoredKey, kNoXla},
    {"xla_fsdp_grad_ckpt", "false", kIgnoredKey, kNoXla},
};

constexpr const char* kConfigDecides = "the model's config.json decides";
constexpr JudgedKey kModelKeys[] = {
    {"attn_implementation", "", kIgnoredKey, "there is one implementation, which stores no score matrix"},
    {"trust_remote_code", "false", kIgnoredKey, "code in model folders is never run"},
    {"low_cpu_mem_usage", "", kIgnoredKey, "weights are always read in pieces"},
    {"use_cache", "", kIgnoredKey, "training keeps no keys and values for later tokens"},
    {"device_map", "", kIgnoredKey, "device decides"},
    {"dtype", "", kRefusedKey, "write dtype as a setting of its own"},
    {"torch_dtype", "", kRefusedKey, "write dtype as a setting of its own"},
    {"revision", "\"main\"", kRefusedKey, "write model_revision"},
    {"quantization_config", "", kRefusedKey, "write load_in_4bit or load_in_8bit"},
};

constexpr const char* kTrlDropped = "TRL does not read it";
constexpr JudgedKey kDatasetKeys[] = {
    {"skip_prepare_dataset", "false", kRefusedKey, "write dataset_format tokens and max_length none"},
    {"add_special_tokens", "", kIgnoredKey,
     "TRL no longer reads it, nor is it the setting add_special_tokens"},
    {"append_concat_token", "", kIgnoredKey, kTrlDropped},
};

// Judges an object key by key; `others` says what to do about keys that are not listed.
void judge_object(const std::string& flag, const Json& object, std::span<const JudgedKey> keys,
                  const char* others) {
  if (!object.is_object())
    fail(ExitCode::kUsage, "--{}: expected a JSON object, found {}", flag, found_text(object));
  for (const auto& [name, value] : object.items()) {
    std::string_view bare = name;
    if (flag == "fsdp_config" && bare.starts_with("fsdp_")) bare.remove_prefix(5);  // accelerate's spelling
    const auto key = std::ranges::find_if(keys, [&](const JudgedKey& known) { return bare == known.name; });
    if (key == keys.end())
      fail(ExitCode::kUsage, "--{}: unknown key '{}': {}", flag, printable(name), others);
    std::istringstream harmless(key->harmless);
    bool is_harmless = value.is_null();
    for (std::string text; harmless >> text;) is_harmless = is_harmless || value == Json::parse(text);
    if (is_harmless) continue;
    const std::string shown = printable(value.is_string() ? value.get<std::string>() : value.dump(), 80);
    if (key->status == kRefusedKey)
      fail(ExitCode::kUsage, "--{}: {} {} is not supported: {}", flag, name, shown, key->note);
    log_warning("{}: {} {} has no effect: {}", flag, name, shown, key->note);
  }
}

// The object that a value gives as JSON or as the name of a JSON file; nullopt for none.
std::optional<Json> object_of(const std::string& flag, const std::vector<std::string>& values) {
  const std::string text = values.size() == 1 ? values[0] : fmt::format("{}", fmt::join(values, " "));
  if (is_nothing(text)) return std::nullopt;
  const bool is_json = text.find_first_not_of(" \t\r\n") == text.find('{');
  try {
    return parse_json(is_json ? text : read_text_file(text, kMaxJudgedBytes), is_json ? "--" + flag : text);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadData) throw;
    fail(ExitCode::kUsage, "{}", error.what());
  }
}

void declare_object(FlagTable* table, const char* name, std::span<const JudgedKey> keys, const char* others,
                    FlagStatus status, const char* note) {
  table->add_unsupported(name, FlagType::kString, "", status, note).set =
      [flag = std::string(name), keys, others](const std::vector<std::string>& values) {
        if (const std::optional<Json> object = object_of(flag, values))
          judge_object(flag, *object, keys, others);
      };
}

struct FsdpWord {
  const char* name;
  const char* instead;
};
constexpr FsdpWord kFsdpWords[] = {
    {"true", "zero_stage 3, which shards weights, gradients and optimizer state"},
    {"full_shard", "zero_stage 3, which shards weights, gradients and optimizer state"},
    {"shard_grad_op", "zero_stage 2, which shards gradients and optimizer state"},
    {"no_shard", "zero_stage 0, which shards nothing"},
    {"hybrid_shard", "zero_stage 3; the ranks of a node share its weights in any case"},
    {"hybrid_shard_zero2", "zero_stage 2; the ranks of a node share its weights in any case"},
    {"offload", "offload_optimizer_device and offload_param_device"},
    {"auto_wrap", "nothing: weights are gathered layer by layer in any case"},
};

void judge_fsdp(const std::vector<std::string>& values) {
  std::istringstream words(fmt::format("{}", fmt::join(values, " ")));
  std::string instead;
  for (std::string word; words >> word;) {
    if (is_nothing(word) || lower_case(word) == "false") continue;
    const auto known =
        std::ranges::find_if(kFsdpWords, [&](const FsdpWord& each) { return lower_case(word) == each.name; });
    if (known == std::end(kFsdpWords)) {
      std::string names;
      for (const FsdpWord& each : kFsdpWords)
        names += fmt::format("{}{}", names.empty() ? "" : ", ", each.name);
      fail(ExitCode::kUsage, "--fsdp: expected some of {}, found '{}'", names, printable(word));
    }
    instead += fmt::format("{}{} is {}", instead.empty() ? "" : "; ", known->name, known->instead);
  }
  if (instead.empty()) return;
  fail(ExitCode::kUsage, "--fsdp {} is not supported: ranks share the work as in ZeRO; {}",
       printable(fmt::format("{}", fmt::join(values, " "))), instead);
}

}  // namespace

void declare_judged_flags(FlagTable* table) {
  table->begin_section("Hugging Face arguments that are judged by key");
  declare_object(table, "accelerator_config", kAcceleratorKeys, "accelerate refuses it too",
                 FlagStatus::kRefused, "accepted are its defaults; batches are always even and seeded");
  table
      ->add_unsupported("fsdp", FlagType::kStringList, "", FlagStatus::kRefused,
                        "full_shard is zero_stage 3, shard_grad_op zero_stage 2")
      .set = judge_fsdp;
  declare_object(table, "fsdp_config", kFsdpKeys, "neither Trainer nor accelerate has it",
                 FlagStatus::kIgnored, kNoFsdp);
  declare_object(table, "model_init_kwargs", kModelKeys, kConfigDecides, FlagStatus::kRefused,
                 kConfigDecides);
  declare_object(table, "dataset_kwargs", kDatasetKeys, "see the settings of dataset", FlagStatus::kRefused,
                 "see the settings of dataset");
  declare_object(table, "env", {}, "in a configuration file it sets variables, here the environment does",
                 FlagStatus::kRefused, "a configuration file may set variables by it");
}

}  // namespace tessera
