#include "settings/foreign/axolotl_settings.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/json.h"
#include "io/file.h"
#include "settings/compat/compat_table.h"
#include "settings/foreign/axolotl_datasets.h"

namespace tessera {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class AxolotlSettings {
 public:
  explicit AxolotlSettings(ForeignSettings* settings) : settings_(*settings) {}

  void run() {
    settle_all();
    translate_plugins();
    translate_model();
    translate_adapter();
    translate_datasets();
    translate_rows();
    translate_precision();
    translate_fsdp();
    translate_schedule();
    translate_evaluation();
    translate_checkpoints();
    translate_reports();
    rename_all();
    add_defaults();
    settings_.warn_of_no_effect();
  }

 private:
  std::optional<std::string> take_word(const char* name) {
    const std::optional<ConfigSetting> taken = take(name);
    return taken ? std::optional(word_of_value(taken->value)) : std::nullopt;
  }
  std::optional<ConfigSetting> take(const char* name) {
    std::optional<ConfigSetting> taken = settings_.take(name);
    if (taken) line_ = taken->line;
    return taken;
  }
  bool take_bool(const char* name) {
    const std::optional<std::string> text = take_word(name);
    if (!text || *text == "false" || *text == "False") return false;
    if (*text == "true" || *text == "True") return true;
    settings_.fail_in(line_, "{}: expected true or false, found {}", name, found_text(*text));
  }
  std::optional<double> take_number(const char* name) {
    const std::optional<std::string> text = take_word(name);
    if (!text) return std::nullopt;
    const std::optional<double> number = parse_number(*text);
    if (!number) settings_.fail_in(line_, "{}: expected a number, found {}", name, found_text(*text));
    return number;
  }
  void add(const char* name, json value) { settings_.add(name, std::move(value), line_); }

  // In Axolotl null means not set.
  void settle_all() {
    const CompatTable& table = compat_table("axolotl");
    std::vector<ConfigSetting> kept;
    for (ConfigSetting& setting : settings_.all()) {
      const CompatName* known = table.find(setting.name);
      if (known == nullptr && table.find("datasets." + setting.name) != nullptr) {
        settings_.fail_in(setting.line, "{}: it belongs into an entry of datasets, where it has an effect",
                          setting.name);
      }
      if (setting.value.is_null() && known != nullptr) continue;
      if (!settle_axolotl_key(setting.name, setting.value, setting.line, "", &settings_))
        kept.push_back(std::move(setting));
    }
    settings_.all() = std::move(kept);
  }

  void translate_plugins() {
    const std::optional<ConfigSetting> plugins = take("plugins");
    if (!plugins) return;
    const json list = structure_of(plugins->value);
    for (const json& plugin : list.is_array() ? list : json::array({list})) {
      const std::string name = word_of_value(plugin);
      const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
      if (!has(".liger") && !has(".cut_cross_entropy") && !has(".kernels"))
        settings_.fail_in(line_, "plugins: {} is not supported: leave it out", printable(name));
    }
    settings_.note_no_effect("plugins", "those for kernels: kernels are chosen automatically");
  }

  void translate_model() {
    std::string model = settings_.word("base_model");
    if (const auto config = take_word("base_model_config"); config && *config != model)
      settings_.fail_in(line_, "base_model_config: expected base_model, found {}", printable(*config, 200));
    if (const auto tokenizer = take_word("tokenizer_config"); tokenizer && *tokenizer != model)
      add("tokenizer", *tokenizer);
    for (const char* name : {"revision_of_model", "model_revision"}) {
      const std::optional<std::string> revision = take_word(name);
      if (!revision) continue;
      settings_.take("base_model");
      add("base_model", model + "@" + *revision);
    }
    if (const std::optional<ConfigSetting> tokens = take("special_tokens"))
      check_special_tokens(structure_of(tokens->value), model);
  }

  // Honours eos_token; refuses changes to other tokens; the padding token has no effect.
  void check_special_tokens(const json& tokens, const std::string& model) {
    if (!tokens.is_object())
      settings_.fail_in(line_, "special_tokens: expected an object, found {}", found_text(tokens));
    std::error_code error;
    const fs::path folder = model;
    const bool is_local = fs::is_directory(folder, error);
    const json config = is_local ? json(parse_json_file_if_any(folder / "tokenizer_config.json")) : json();
    const json tokenizer = is_local ? json(parse_json_file_if_any(folder / "tokenizer.json")) : json();
    for (const auto& [name, value] : tokens.items()) {
      if (value.is_null() || name == "pad_token" || name == "unk_token") continue;
      if (!is_local && name != "eos_token") {
        log_warning("special_tokens: {}: the tokenizer's own is used: see that {} is the same", name,
                    printable(value.dump()));
        continue;
      }
      bool is_same = false;
      if (name == "additional_special_tokens") {
        is_same = std::all_of(value.begin(), value.end(),
                              [&](const json& token) { return is_special_in(tokenizer, token); });
      } else if (config.contains(name)) {
        const json& known = config[name];
        is_same = value == (known.is_object() ? json(known.value("content", "")) : known);
      }
      if (!is_same && name == "eos_token" && value.is_string()) {
        add("eos_token", value);
      } else if (!is_same) {
        settings_.fail_in(line_, "special_tokens: {}: {} is not the tokenizer's: change it in {}",
                          printable(name), found_text(value), (folder / "tokenizer_config.json").string());
      }
    }
  }
  static bool is_special_in(const json& tokenizer, const json& token) {
    const auto added = tokenizer.find("added_tokens");
    return added != tokenizer.end() && std::any_of(added->begin(), added->end(), [&](const json& entry) {
             return entry.value("content", json()) == token && entry.value("special", false);
           });
  }

  void translate_adapter() {
    const std::optional<std::string> adapter = take_word("adapter");
    const bool in_8bit = take_bool("load_in_8bit");
    const bool in_4bit = take_bool("load_in_4bit");
    if (!adapter || adapter->empty()) {
      if (in_8bit || in_4bit)
        settings_.fail_in(line_, "load_in_8bit, load_in_4bit: expected adapter lora or qlora beside them");
      drop_lora();
      return;
    }
    if (*adapter != "lora" && *adapter != "qlora")
      settings_.fail_in(line_, "adapter: expected lora or qlora, found {}", printable(*adapter));
    if ((*adapter == "qlora") != in_4bit || (in_8bit && in_4bit)) {
      settings_.fail_in(line_, "adapter {}: expected load_in_4bit true beside qlora alone, as in Axolotl",
                        *adapter);
    }
    add("finetuning_type", "lora");
    if (in_8bit) add("load_in_8bit", true);
    if (in_4bit) {
      add("load_in_4bit", true);
      add("bnb_4bit_use_double_quant", true);  // as Axolotl always does
    }
    translate_targets();
  }

  void translate_targets() {
    const bool is_linear = take_bool("lora_target_linear");
    const std::optional<ConfigSetting> modules = take("lora_target_modules");
    const bool continues = !settings_.word("lora_model_dir").empty();
    if (is_linear && !continues) {
      add("lora_target", json::array({"all"}));
    } else if (modules && !continues) {
      const json list = structure_of(modules->value);
      add("lora_target", list.is_array() ? list : json::array({list}));
    } else if (!continues) {
      settings_.fail_in(line_, "adapter: expected lora_target_modules or lora_target_linear: true beside it");
    }
    for (const char* name : {"lora_r", "lora_alpha"}) {
      if (settings_.word(name).empty() && !continues)
        settings_.fail_in(line_, "adapter: expected {} beside it, as in Axolotl", name);
      if (continues) drop(name, "the adapter of lora_model_dir decides");
    }
    if (continues) drop("lora_dropout", "the adapter of lora_model_dir decides");
  }

  void drop(const char* name, const char* reason) {
    if (settings_.take(name)) settings_.note_no_effect(name, reason);
  }
  void drop_lora() {
    for (const char* name : {"lora_r", "lora_alpha", "lora_dropout", "lora_target_modules",
                             "lora_target_linear", "lora_model_dir", "lora_modules_to_save",
                             "lora_rank_pattern", "lora_alpha_pattern", "peft_use_rslora", "peft_use_dora"})
      drop(name, "adapter is not set, so all weights are trained");
  }

  void translate_datasets() {
    AxolotlChats chats;
    chats.train_on_inputs = take_bool("train_on_inputs");
    if (chats.train_on_inputs) add("train_on_prompt", true);
    if (const auto tokens = take("eot_tokens")) chats.eot_tokens = structure_of(tokens->value);
    const bool is_list =
        chats.eot_tokens.is_array() && std::all_of(chats.eot_tokens.begin(), chats.eot_tokens.end(),
                                                   [](const json& token) { return token.is_string(); });
    if (!chats.eot_tokens.is_null() && !is_list)
      settings_.fail_in(line_, "eot_tokens: expected a list of texts, found {}",
                        found_text(chats.eot_tokens));
    if (const auto variables = take("chat_template_kwargs")) chats.variables = structure_of(variables->value);
    if (!chats.variables.is_null() && !chats.variables.is_object())
      settings_.fail_in(line_, "chat_template_kwargs: expected an object, found {}",
                        found_text(chats.variables));
    json whole = json::object();
    for (const char* name : {"chat_template", "chat_template_jinja"}) {
      if (const std::optional<std::string> text = take_word(name)) whole[name] = *text;
    }
    const std::string name = axolotl_chat_template(whole, line_, settings_);
    const std::optional<ConfigSetting> other = translate_axolotl_datasets(chats, &settings_);
    if (other && !name.empty() && other->value != name) {
      settings_.fail_in(other->line, "chat_template: a data set has {}, the file {}: give one",
                        found_text(other->value), found_text(name));
    }
    if (!name.empty()) add("chat_template", name);
    if (name.empty() && other) settings_.add("chat_template", other->value, other->line);
  }

  void translate_rows() {
    if (const auto length = take_word("eval_sequence_len");
        length && *length != settings_.word("sequence_len"))
      settings_.fail_in(line_, "eval_sequence_len: expected sequence_len, found {}", printable(*length));
    const std::optional<std::string> strategy = take_word("excess_length_strategy");
    add("excess_length_strategy", strategy.value_or("drop"));
    const bool is_sorted = take_bool("curriculum_sampling");
    if (take_bool("group_by_length")) add("train_sampling_strategy", "group_by_length");
    if (is_sorted) add("train_sampling_strategy", "sequential");
    const std::optional<double> share = take_number("val_set_size");
    if (share && !(*share >= 0 && *share < 1)) {
      settings_.fail_in(line_, "val_set_size: expected a share of the rows from 0 to below 1, found {}",
                        *share);
    }
    translate_packing(strategy == "truncate", share.value_or(0) > 0);
    has_evaluation_ = settings_.find("eval_dataset") != nullptr || share.value_or(0) > 0;
    if (share.value_or(0) > 0) {
      if (settings_.find("eval_dataset") != nullptr)
        settings_.fail_in(line_, "val_set_size contradicts test_datasets, as in Axolotl: give one of them");
      add("validation_split_percentage", 100 * *share);
      log_warning(
          "val_set_size: the first rows are held out; Axolotl shuffles the rows by its seed and holds out "
          "the "
          "last ones");
    }
  }

  // The nearest to Axolotl's bins: whole documents share a row, and text comes in pieces.
  void translate_packing(bool cuts, bool holds_out) {
    const std::string packs = settings_.word("sample_packing");
    if ((packs == "true" || packs == "True") && settings_.find("packing_strategy") == nullptr)
      add("packing_strategy", cuts ? "bfd" : "bfd_split");
    const std::optional<std::string> eval_packs = take_word("eval_sample_packing");
    if (!eval_packs) return;
    if (settings_.find("eval_dataset") != nullptr || holds_out) {
      add("eval_packing", *eval_packs);
    } else {
      settings_.note_no_effect("eval_sample_packing", "no rows are evaluated");
    }
  }

  void translate_precision() {
    for (const char* name : {"bf16", "bfloat16"}) {
      const std::optional<std::string> value = take_word(name);
      if (!value) continue;
      if (*value == "full") add("bf16_full_eval", true);
      if (settings_.find("bf16") == nullptr || name == std::string_view("bf16"))
        add("bf16", *value == "full" ? json(true) : json(*value));
    }
    const std::optional<std::string> checkpointing = take_word("gradient_checkpointing");
    if (!checkpointing) return;
    const bool offloads = checkpointing->starts_with("offload");
    add("gradient_checkpointing", offloads ? json(true) : json(*checkpointing));
    if (offloads) {
      settings_.note_no_effect("gradient_checkpointing " + *checkpointing,
                               "it means true: gradient_checkpointing_mode offload keeps inputs on disk");
    }
  }

  // The configuration alone switches FSDP on.
  void translate_fsdp() {
    std::optional<ConfigSetting> config = take("fsdp_config");
    const int64_t line = line_;
    const std::optional<std::string> version = take_word("fsdp_version");
    json object = config ? structure_of(config->value) : json::object();
    const bool is_set = settings_.is_set("fsdp") || (config && object != "" && object != json::object());
    if (!is_set) {
      if (version) settings_.note_no_effect("fsdp_version", "there is neither fsdp nor fsdp_config");
      return;
    }
    if (!object.is_object())
      settings_.fail_in(line, "fsdp_config: expected an object, found {}", found_text(object));
    for (const char* key : {"version", "fsdp_version"}) {
      if (!version || !object.contains(key)) continue;
      if (word_of_value(object[key]) != *version)
        settings_.fail_in(line_, "fsdp_version: expected that of fsdp_config, found {}", printable(*version));
      object.erase(key);
    }
    if (version) object["version"] = *version;
    if (!settings_.is_set("fsdp")) settings_.add("fsdp", true, line);
    if (!object.empty()) settings_.add("fsdp_config", std::move(object), line);
  }

  void translate_schedule() {
    if (const std::optional<double> floor = take_number("cosine_min_lr_ratio"); floor && *floor > 0) {
      const std::string scheduler = settings_.word("lr_scheduler");
      if (!scheduler.empty() && scheduler != "cosine") {
        settings_.fail_in(line_, "cosine_min_lr_ratio: expected lr_scheduler cosine beside it, found {}",
                          printable(scheduler));
      }
      settings_.take("lr_scheduler");
      add("lr_scheduler", "cosine_with_min_lr");
      add("lr_scheduler_kwargs", json{{"min_lr_rate", *floor}});
    }
    const std::optional<double> steps = take_number("warmup_steps");
    const std::optional<double> ratio = take_number("warmup_ratio");
    // Axolotl makes two of a single step.
    if (steps) add("warmup_steps", *steps == 1 ? 2.0 : *steps);
    if (!steps) add("warmup_ratio", ratio.value_or(0.03));
    if (!steps && !ratio) {
      log_warning(
          "warmup_ratio 0.03 is Axolotl's default, rounded up here and without its limit of 100 steps: set "
          "warmup_steps for another warm-up");
    }
  }

  void translate_evaluation() {
    std::optional<std::string> strategy = take_word("eval_strategy");
    if (const std::optional<std::string> old = take_word("evaluation_strategy"); old && !strategy)
      strategy = old;
    std::optional<double> steps = take_number("eval_steps");
    const std::optional<double> per_epoch = take_number("evals_per_epoch");
    if (steps && per_epoch)
      settings_.fail_in(line_, "evals_per_epoch contradicts eval_steps, as in Axolotl: give one of them");
    if (!has_evaluation_) {
      if (strategy && *strategy != "no")
        settings_.note_no_effect("eval_strategy", "there is no evaluation data");
      if (steps || per_epoch)
        settings_.note_no_effect(steps ? "eval_steps" : "evals_per_epoch", "there is no evaluation data");
      return;
    }
    if (per_epoch && *per_epoch > 0) steps = part_of_run(*per_epoch);
    if (steps && *steps > 0 && (*steps < 1 || !per_epoch)) {
      add("eval_strategy", "steps");
      add("eval_steps", *steps);
    } else {
      // At one evaluation in one epoch, Axolotl has none.
      add("eval_strategy", per_epoch ? "epoch" : strategy.value_or("no"));
    }
    if (steps || strategy.value_or("no") != "no") add("eval_on_start", true);
    if (!steps && !strategy)
      log_warning("eval_strategy no is Axolotl's default: set eval_steps or evals_per_epoch to evaluate");
  }

  // A fraction of all steps; 1 for one time in one epoch.
  double part_of_run(double times_per_epoch) const {
    const std::optional<double> epochs = parse_number(settings_.word("num_epochs"));
    return 1.0 / (times_per_epoch * epochs.value_or(1.0));
  }

  void translate_checkpoints() {
    const std::optional<std::string> strategy = take_word("save_strategy");
    std::optional<double> steps = take_number("save_steps");
    const std::optional<double> per_epoch = take_number("saves_per_epoch");
    if (steps && per_epoch)
      settings_.fail_in(line_, "saves_per_epoch contradicts save_steps, as in Axolotl: give one of them");
    if (per_epoch && *per_epoch > 0 && part_of_run(*per_epoch) < 1) steps = part_of_run(*per_epoch);
    if (steps && *steps > 0) {
      add("save_strategy", "steps");
      add("save_steps", *steps);
    } else {
      add("save_strategy", strategy.value_or("epoch"));
    }
    const double limit = take_number("save_total_limit").value_or(0);
    add("save_total_limit", static_cast<int64_t>(limit > 0 ? limit : 4));
    const bool resumes = take_bool("auto_resume_from_checkpoints");
    if (resumes && settings_.find("resume_from_checkpoint") == nullptr) add("resume_from_checkpoint", "auto");
  }

  void translate_reports() {
    json sinks = json::array();
    if (take_bool("use_tensorboard")) sinks.push_back("tensorboard");
    if (take_bool("use_mlflow")) sinks.push_back("mlflow");
    if (!sinks.empty() && settings_.find("report_to") == nullptr) add("report_to", sinks);
    if (const std::optional<std::string> name = take_word("mlflow_run_name")) add("run_name", *name);
  }

  void rename_all() {
    for (ConfigSetting& setting : settings_.all()) {
      const CompatName* known = compat_table("axolotl").find(setting.name);
      if (known != nullptr && known->use == CompatUse::kSame) setting.name = known->detail;
    }
  }

  void add_default(const char* name, json value) {
    if (settings_.find(name) != nullptr) return;
    defaults_.push_back(fmt::format("{} {}", name, word_of_value(value)));
    settings_.add(name, std::move(value), 1);
  }
  void add_defaults() {
    if (settings_.find("eos_token") != nullptr) add_default("logging_steps", 500);  // not TRL's
    add_default("max_length", 512);
    add_default("per_device_train_batch_size", 1);
    if (settings_.find("per_device_eval_batch_size") == nullptr)
      settings_.add("per_device_eval_batch_size", settings_.find("per_device_train_batch_size")->value, 1);
    add_default("num_train_epochs", 1);
    add_default("optim", "adamw_torch_fused");
    add_default("lr_scheduler_type", "cosine");
    add_default("weight_decay", 0.0);
    // Axolotl sets it in every run; it counts on several ranks.
    if (settings_.find("average_tokens_across_devices") == nullptr)
      settings_.add("average_tokens_across_devices", false, 1);
    if (!defaults_.empty()) log_info("as in Axolotl by default: {}", fmt::join(defaults_, ", "));
  }

  ForeignSettings& settings_;
  int64_t line_ = 1;  // of the setting taken last
  bool has_evaluation_ = false;
  std::vector<std::string> defaults_;
};

}  // namespace

bool is_axolotl_file(const std::vector<ConfigSetting>& settings) {
  static constexpr std::string_view kOwn[] = {"micro_batch_size",    "sequence_len", "num_epochs",
                                              "sample_packing",      "val_set_size", "datasets",
                                              "pretraining_dataset", "adapter",      "lora_target_linear"};
  const auto has_type = [](const json& entry) { return entry.is_object() && entry.contains("type"); };
  bool has_base_model = false;
  bool has_own_name = false;
  for (const ConfigSetting& setting : settings) {
    const bool is_list = setting.name == "datasets" || setting.name == "test_datasets";
    if (is_list && setting.value.is_array() &&
        std::any_of(setting.value.begin(), setting.value.end(), has_type))
      return true;
    has_base_model = has_base_model || setting.name == "base_model";
    has_own_name =
        has_own_name || std::find(std::begin(kOwn), std::end(kOwn), setting.name) != std::end(kOwn);
  }
  return has_base_model && has_own_name;
}

void translate_axolotl(ForeignSettings* settings) { AxolotlSettings(settings).run(); }

}  // namespace tessera
