#include "settings/foreign/script_settings.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/input_files.h"
#include "hub/dataset_splits.h"
#include "hub/repo_name.h"
#include "settings/fields/fields.h"
#include "settings/run_settings.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Flags that only TRL's scripts have, whose SFTConfig has defaults of its own.
constexpr const char* kOnlyInTrl[] = {
    "use_peft",        "eos_token",       "dataset_name", "dataset_train_split", "dataset_test_split",
    "truncation_mode", "shuffle_dataset", "loss_type",    "lora_task_type"};

// The form that choose_split() takes: paths in the folder, sorted.
std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> paths;
  for (const fs::path& file : find_input_files({folder.string()}, InputUse::kDataset).files)
    paths.push_back(file.lexically_relative(folder).string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

class Application {
 public:
  Application(FlagTable* table, RunSettings* spec) : table_(*table), spec_(*spec) {}

  void run() {
    if (!spec_.sources.script.dataset_name.empty()) apply_dataset();
    apply_revision();
    if (spec_.sources.script.use_peft) apply_peft();
    apply_defaults();
  }

 private:
  void set(const char* flag, const std::vector<std::string>& values, const std::string& from) {
    table_.set(*table_.find(flag), values, table_.origin(from));
  }

  void apply_dataset() {
    ScriptArguments& script = spec_.sources.script;
    if (table_.is_set("dataset")) {
      fail(ExitCode::kBadConfig, "dataset_name contradicts dataset: give one of them");
    }
    set("dataset", split_sources(script.dataset_name, script.dataset_config, script.dataset_train_split),
        "dataset_name");
    read_lines(table_.find("dataset")->get());
    const bool evaluates = spec_.evaluation.strategy != IntervalStrategy::kNo || spec_.evaluation.on_start;
    if (!evaluates || table_.is_set("eval_dataset") || table_.is_set("validation_split_percentage")) return;
    const bool is_example = table_.is_set("dataset_config_name");
    const std::string split = !script.dataset_test_split.empty() ? script.dataset_test_split
                              : is_example                       ? "validation"
                                                                 : "test";
    set("eval_dataset", split_sources(script.dataset_name, script.dataset_config, split), "dataset_name");
  }

  // The library datasets reads text files this way; the examples of Transformers join the lines again.
  void read_lines(const std::vector<std::string>& sources) {
    const bool has_text = std::ranges::any_of(sources, [](const std::string& source) {
      std::error_code error;
      return fs::is_regular_file(source, error) && input_kind(source) == InputKind::kText;
    });
    if (!has_text || table_.is_set("text_per_line") || table_.is_set("dataset_config_name")) return;
    set("text_per_line", {"true"}, "dataset_name");
    log_info("dataset_name: every line of a text file is a row, as in TRL");
  }

  void apply_revision() {
    const std::string& revision = spec_.sources.script.model_revision;
    if (revision == "main" || spec_.model.folder.empty()) return;
    if (!hub_model_name(spec_.model.folder) || spec_.model.folder.find('@') != std::string::npos) {
      log_warning("model_revision {} has no effect: {} is not a name on the Hub without a revision", revision,
                  spec_.model.folder);
      return;
    }
    spec_.model.folder += "@" + revision;
  }

  // get_peft_config() of TRL, with the defaults of its ModelConfig and of PEFT.
  void apply_peft() {
    if (table_.is_set("finetuning_type") && spec_.lora.finetuning_type != FinetuningType::kLora)
      fail(ExitCode::kBadConfig, "use_peft contradicts finetuning_type {}: give one of them",
           spec_.lora.finetuning_type);
    set("finetuning_type", {"lora"}, "use_peft");
    if (!spec_.lora.adapter.empty()) return;
    std::string defaults;
    const auto fill = [&](const char* flag, const std::vector<std::string>& values) {
      if (table_.is_set(flag)) return;
      table_.find(flag)->set(values);
      defaults += fmt::format(" {} {},", flag, fmt::join(values, " "));
    };
    fill("lora_rank", {"16"});
    fill("lora_alpha", {"32"});
    fill("lora_dropout", {"0.05"});
    fill("lora_target", {"q_proj", "v_proj"});
    if (defaults.empty()) return;
    defaults.pop_back();
    log_info("use_peft: as in TRL and PEFT,{}", defaults);
  }

  void apply_defaults() {
    if (table_.is_set("dataset_config_name")) return;  // an example of Transformers
    const auto given =
        std::ranges::find_if(kOnlyInTrl, [&](const char* name) { return table_.is_set(name); });
    if (given == std::end(kOnlyInTrl)) return;
    std::string defaults;
    const auto fill = [&](const char* flag, const char* value) {
      if (table_.is_set(flag)) return;
      table_.find(flag)->set({value});
      defaults += fmt::format("{}{} {}", defaults.empty() ? "" : " and ", flag, value);
    };
    fill("learning_rate", "2e-05");
    if (!table_.is_set("logging_strategy")) fill("logging_steps", "10");
    if (!defaults.empty()) log_info("{} is a setting of TRL, whose defaults are {}", *given, defaults);
  }

  FlagTable& table_;
  RunSettings& spec_;
};

void declare_eos_token(FlagTable* table, ScriptArguments* script) {
  Flag& eos = add_field(table, "eos_token", &script->eos_token);
  eos.set = [set = eos.set](const std::vector<std::string>& values) {
    const bool is_mask = values == std::vector<std::string>{"<EOS_TOKEN>"};
    if (is_mask) {
      log_warning(
          "eos_token <EOS_TOKEN> is what the JSON of SFTConfig has in place of any value: the tokenizer's "
          "eos_token stays");
    }
    set(is_mask ? std::vector<std::string>{""} : values);
  };
}

}  // namespace

std::vector<std::string> split_sources(const std::string& name, const std::string& config,
                                       const std::string& split) {
  std::error_code error;
  if (fs::is_directory(name, error)) {
    DatasetName wanted;
    wanted.repo.id = name;
    wanted.config = config;
    wanted.split = split;
    std::vector<std::string> sources;
    for (const std::string& file : choose_split(wanted, read_dataset_card(name), files_below(name)))
      sources.push_back((fs::path(name) / file).string());
    return sources;
  }
  if (fs::exists(name, error)) return {name};
  if (!is_repo_id(name)) {
    fail(ExitCode::kNoInput,
         "dataset_name: expected a folder, a file or a name on the Hub, org/name, found '{}'; the Hub's own "
         "data sets have an organisation, too, as in Salesforce/wikitext",
         printable(name, 200));
  }
  return {name + (config.empty() ? "" : ":" + config) + "/" + split};
}

void declare_script_flags(FlagTable* table, RunSettings* spec) {
  ScriptArguments& script = spec->sources.script;
  table->begin_section("Arguments of TRL's scripts");
  // training_args.json has what these become.
  add_field(table, "dataset_name", &script.dataset_name).get = nullptr;
  add_field(table, "dataset_config", &script.dataset_config).get = nullptr;
  add_field(table, "dataset_config_name", &script.dataset_config).get = nullptr;
  add_field(table, "dataset_train_split", &script.dataset_train_split).get = nullptr;
  add_field(table, "dataset_test_split", &script.dataset_test_split).get = nullptr;
  add_field(table, "model_revision", &script.model_revision).get = nullptr;
  add_field(table, "use_peft", &script.use_peft).get = nullptr;
  declare_eos_token(table, &script);
}

void apply_script_arguments(FlagTable* table, RunSettings* spec) { Application(table, spec).run(); }

}  // namespace tessera
