#include "settings/foreign/llama_factory_datasets.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/text.h"
#include "data/chat/builtin_templates.h"
#include "formats/json.h"
#include "io/file.h"
#include "settings/foreign/llama_factory_info.h"
#include "settings/run/evaluation_sets.h"

namespace tessera {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kInfoFile = "dataset_info.json";
constexpr const char* kOnline = "ONLINE";

// Settings that only LLaMA-Factory has; template and dataset_dir are sufficient marks.
constexpr std::string_view kMarks[] = {"stage",          "cutoff_len",     "mask_history",     "neat_packing",
                                       "media_dir",      "tokenized_path", "interleave_probs", "mix_strategy",
                                       "default_system", "tool_format",    "enable_thinking"};

// The names of data sets: "a, b" or [a, b].
std::vector<std::string> names_in(const Json& value) {
  std::vector<std::string> names;
  const auto add = [&names](std::string_view name) {
    const size_t begin = name.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return;
    names.emplace_back(name.substr(begin, name.find_last_not_of(" \t") + 1 - begin));
  };
  if (value.is_array()) {
    for (const Json& item : value) add(word_of_value(item));
    return names;
  }
  const std::string text = word_of_value(value);
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    add(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

class LlamaFactoryDatasets {
 public:
  explicit LlamaFactoryDatasets(ForeignSettings* settings) : settings_(*settings) {}

  void run() {
    refuse_tokenized_rows();
    if (!is_llama_factory()) return drop_defaults();
    translate_template();
    read_rows();
    read_max_samples();
    translate_generation_length();
    if (!is_set("cutoff_len"))
      log_warning("cutoff_len is not set: rows have at most 1024 tokens, in LLaMA-Factory 2048");
    translate_packing();
    if (!is_set("finetuning_type")) {
      log_warning("finetuning_type is not set: LoRA adapters are trained, as in LLaMA-Factory");
      settings_.take("finetuning_type");
      settings_.add("finetuning_type", "lora", 1);
    }
    read_val_size();
    translate_sources();
  }

 private:
  bool is_set(std::string_view name) const { return settings_.is_set(name); }
  bool is_true(std::string_view name) const { return settings_.is_true(name); }
  int64_t line_of(std::string_view name) const { return settings_.find(name)->line; }

  bool is_llama_factory() const {
    if (is_set("template") || is_set("dataset_dir")) return true;
    if (!is_set("dataset") ||
        std::none_of(std::begin(kMarks), std::end(kMarks), [this](auto mark) { return is_set(mark); }))
      return false;
    const fs::path path = fs::path("data") / kInfoFile;
    std::error_code error;
    if (!fs::is_regular_file(path, error)) return false;
    const Json info = parse_json(read_text_file(path), path.string());
    const std::vector<std::string> names = names_in(settings_.find("dataset")->value);
    return std::all_of(names.begin(), names.end(),
                       [&](const std::string& name) { return info.is_object() && info.contains(name); });
  }

  // In other files, these settings are known when they set nothing.
  void drop_defaults() {
    for (const char* name : {"template", "dataset_dir", "mix_strategy", "interleave_probs", "max_samples",
                             "mask_history", "default_system"}) {
      const std::string word = lower_case(settings_.word(name));
      const bool is_default = !is_set(name) ||
                              (name == std::string_view("mix_strategy") && word == "concat") ||
                              (name == std::string_view("mask_history") && word == "false");
      if (is_default) settings_.take(name);
    }
  }

  // Where LLaMA-Factory finds rows that it has tokenized, it reads nothing else.
  void refuse_tokenized_rows() const {
    if (!is_set("tokenized_path")) return;
    const fs::path path = settings_.word("tokenized_path");
    std::error_code error;
    for (const char* saved : {"dataset_dict.json", "state.json"}) {
      if (!fs::exists(path / saved, error)) continue;
      settings_.fail_in(
          line_of("tokenized_path"),
          "tokenized_path: {} has rows that LLaMA-Factory has tokenized, which are not read here: leave "
          "it out, so that the rows are tokenized again",
          printable(path.string(), 200));
    }
  }

  void translate_template() {
    const std::optional<ConfigSetting> taken = settings_.take("template");
    if (!taken) return;
    const std::string name = word_of_value(taken->value);
    const std::vector<std::string> known = builtin_chat_template_names(kLlamaFactoryPrefix);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      settings_.fail_in(
          taken->line,
          "template: {} is not built in ({} are): leave it out to use the model's own chat template, "
          "or set chat_template to a file",
          printable(name), fmt::join(known, ", "));
    }
    const bool has_thoughts = name == "qwen3" || name == "deepseekr1";
    if (has_thoughts && is_true("mask_history")) {
      settings_.fail_in(
          line_of("mask_history"),
          "mask_history with the template {} drops the thoughts of earlier answers, which is not "
          "supported: leave one of the two out",
          name);
    }
    has_template_ = true;
    settings_.add("chat_template", fmt::format("{}{}{}", kLlamaFactoryPrefix, name, thinking_of(name)),
                  taken->line);
  }

  // enable_thinking false is for templates of reasoning models, as is the default, true.
  std::string_view thinking_of(const std::string& name) {
    const bool is_off = is_set("enable_thinking") && !is_true("enable_thinking");
    if (!is_off) return "";
    const int64_t line = settings_.take("enable_thinking")->line;
    if (!builtin_chat_template(fmt::format("{}{}{}", kLlamaFactoryPrefix, name, kWithoutThinking)).empty())
      return kWithoutThinking;
    log_warning("enable_thinking (line {}) has no effect: the template {} is not that of a reasoning model",
                line, name);
    return "";
  }

  // Determines which rows of the data sets are read, and which parts are targets.
  void read_rows() {
    rows_.names_stage = is_set("stage");
    rows_.is_pretraining = rows_.names_stage && settings_.word("stage") == "pt";
    rows_.last_answer_only = is_true("mask_history");
    if (rows_.last_answer_only && (is_true("train_on_prompt") || rows_.is_pretraining)) {
      settings_.fail_in(line_of("mask_history"), "mask_history contradicts {}",
                        rows_.is_pretraining ? "stage pt" : "train_on_prompt");
    }
    settings_.take("mask_history");
    if (const auto system = settings_.take("default_system")) {
      if (!system->value.is_string())
        settings_.fail_in(system->line, "default_system: expected a text, found {}",
                          found_text(system->value));
      rows_.default_system = system->value.get<std::string>();
      if (rows_.default_system->empty() && !has_template_) {
        settings_.fail_in(system->line,
                          "default_system: \"\" means no system message, which the model's own chat template "
                          "cannot be told: name a template");
      }
    }
    for (const char* both : {"train_on_prompt", "neat_packing"}) {
      if (rows_.is_pretraining && is_true(both))
        settings_.fail_in(line_of(both), "{} is not for stage pt: leave it out", both);
    }
  }

  // max_samples: the first rows of every data set.
  void read_max_samples() {
    const std::optional<ConfigSetting> taken = settings_.take("max_samples");
    if (!taken) return;
    const std::vector<double> count = settings_.numbers_of(*taken);
    if (count.size() != 1 || !(count[0] >= 1 && count[0] <= 1e15) || std::floor(count[0]) != count[0])
      settings_.fail_in(taken->line, "max_samples: expected a number of rows, found {}",
                        found_text(taken->value));
    if (is_true("streaming"))
      settings_.fail_in(taken->line, "max_samples contradicts streaming: leave one of the two out");
    rows_.max_samples = static_cast<int64_t>(count[0]);
  }
  // A number of rows: the first ones of the data set are held out, as with a share (foreign_datasets.cc).
  void read_val_size() {
    const ConfigSetting* setting = settings_.find("val_size");
    const std::vector<double> size =
        setting == nullptr ? std::vector<double>() : settings_.numbers_of(*setting);
    if (size.size() != 1 || !(size[0] > 1)) return;
    const ConfigSetting taken = *settings_.take("val_size");
    const int64_t num_rows = static_cast<int64_t>(std::min(size[0], 1e15));
    if (is_set("eval_dataset"))
      settings_.fail_in(taken.line,
                        "val_size contradicts eval_dataset, as in LLaMA-Factory: give one of them");
    if (!is_set("dataset") || names_in(settings_.find("dataset")->value).size() != 1) {
      settings_.fail_in(taken.line,
                        "val_size: a number of rows is supported for one data set: give a share below 1, or "
                        "an eval_dataset");
    }
    if (rows_.max_samples && *rows_.max_samples <= num_rows)
      settings_.fail_in(taken.line, "val_size: expected less than max_samples, {}, found {}",
                        *rows_.max_samples, num_rows);
    rows_.num_held_out = num_rows;
    settings_.add("eval_dataset", settings_.find("dataset")->value, taken.line);
  }

  // LLaMA-Factory's max_length is the length of generated text.
  void translate_generation_length() {
    if (!is_set("max_length")) return;
    const ConfigSetting taken = *settings_.take("max_length");
    if (!is_set("cutoff_len")) {
      settings_.fail_in(
          taken.line,
          "max_length is the length of generated text in LLaMA-Factory's files: give the length of "
          "rows as cutoff_len");
    }
    log_warning("max_length has no effect: nothing is generated");
  }

  // The rows are LLaMA-Factory's, which lets documents see those before them in their row unless neat_packing
  // is set; that is kept if the row is one text.
  void translate_packing() {
    if (rows_.is_pretraining && !is_set("packing")) {
      settings_.take("packing");
      settings_.add("packing", true, 1);
    }
    const bool is_chosen = is_set("packing_strategy") || is_set("packing_cross_document_attention");
    if (!is_true("packing") || is_true("neat_packing") || is_chosen) return;
    settings_.take("packing_strategy");
    settings_.add("packing_strategy", rows_.is_pretraining ? "wrapped" : "greedy_knapsack",
                  line_of("packing"));
    log_warning(
        "{}",
        rows_.is_pretraining
            ? "packing: documents attend to those before them in their row, as in LLaMA-Factory's stage "
              "pt; packing_strategy in_order keeps them apart"
            : "packing: documents in a row do not attend to each other, as with neat_packing; without "
              "it LLaMA-Factory lets them");
  }

  void translate_sources() {
    const std::optional<ConfigSetting> folder = settings_.take("dataset_dir");
    if (folder && !folder->value.is_string())
      settings_.fail_in(folder->line, "dataset_dir: expected a folder, found {}", found_text(folder->value));
    const std::string dir = folder ? folder->value.get<std::string>() : "data";
    if (dir.starts_with("REMOTE:"))
      settings_.fail_in(folder->line, "dataset_dir: {}: download the files, and name their folder",
                        printable(dir, 200));
    const bool alternates = mixes_in_turn();
    const std::optional<ConfigSetting> probabilities = settings_.take("interleave_probs");
    if (probabilities && !alternates)
      settings_.fail_in(probabilities->line, "interleave_probs needs mix_strategy interleave_under");
    const bool by_name = is_true("eval_on_each_dataset");
    settings_.take("eval_on_each_dataset");
    if (by_name && !is_set("eval_dataset"))
      log_warning("eval_on_each_dataset has no effect: there is no eval_dataset");
    for (const char* flag : {"dataset", "eval_dataset"}) {
      if (!is_set(flag)) continue;
      const ConfigSetting taken = *settings_.take(flag);
      const std::vector<std::string> names = names_in(taken.value);
      std::vector<double> weights;
      if (alternates && names.size() > 1 && std::string_view(flag) == "eval_dataset") {
        log_warning("eval_dataset: all rows of all data sets are evaluated on, not those that {} takes",
                    "interleave_under");
      }
      if (alternates && names.size() > 1 && std::string_view(flag) == "dataset") {
        weights = probabilities ? settings_.numbers_of(*probabilities) : std::vector<double>(names.size(), 1);
        if (weights.size() != names.size()) {
          settings_.fail_in(probabilities->line,
                            "interleave_probs: expected one number for each of {}, found {}",
                            format_count(std::ssize(names), "dataset"), weights.size());
        }
      }
      ForeignSources sources = sources_of(dir, taken, names, weights);
      if (by_name && std::string_view(flag) == "eval_dataset") name_sets(taken, names, &sources);
      settings_.set_sources(flag, std::move(sources), taken.line);
    }
  }

  // eval_on_each_dataset: every data set is evaluated under its own name.
  void name_sets(const ConfigSetting& setting, const std::vector<std::string>& names,
                 ForeignSources* sources) const {
    nlohmann::ordered_json sets = nlohmann::ordered_json::object();
    for (size_t i = 0; i < names.size(); ++i) sets[names[i]] = sources->paths[i].get<std::string>();
    sources->paths = entries_of_sets(sets.dump(), settings_.place(setting.line) + setting.name);
  }

  bool mixes_in_turn() {
    const std::optional<ConfigSetting> strategy = settings_.take("mix_strategy");
    if (!strategy || strategy->value == "concat") return false;
    if (strategy->value == "interleave_under") return true;
    if (strategy->value == "interleave_once" && !is_true("disable_shuffling")) {
      settings_.take("interleave_probs");
      log_warning(
          "mix_strategy interleave_once: every row comes once in an epoch, which is shuffled, as with "
          "concat");
      return false;
    }
    settings_.fail_in(strategy->line,
                      "mix_strategy: expected concat, interleave_under or, with shuffling, interleave_once, "
                      "found {}: no row comes twice in an epoch, and weights are written as in dataset: "
                      "a.jsonl:0.7 b.jsonl:0.3",
                      found_text(strategy->value));
  }

  ForeignSources sources_of(const fs::path& dir, const ConfigSetting& setting,
                            const std::vector<std::string>& names, const std::vector<double>& weights) const {
    const std::string origin = (dir / kInfoFile).string();
    const bool is_online = dir == kOnline;
    const Json info = is_online ? Json::object() : parse_json(read_text_file(origin), origin);
    const bool is_evaluation = setting.name == "eval_dataset";
    ForeignSources sources;
    for (size_t i = 0; i < names.size(); ++i) {
      if (std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) !=
          names.begin() + static_cast<std::ptrdiff_t>(i))
        settings_.fail_in(setting.line, "{}: '{}' is named twice", setting.name, printable(names[i]));
      if (!is_online && (!info.is_object() || !info.contains(names[i]))) {
        settings_.fail_in(setting.line, "{}: '{}' is not described in {}", setting.name, printable(names[i]),
                          origin);
      }
      const JsonNode entry = JsonNode(info, origin)[names[i]];
      const std::string source = is_online ? names[i] + rows_.slice(is_evaluation)
                                           : llama_factory_source(dir, entry, rows_, is_evaluation);
      sources.paths.push_back(weights.empty() ? source : fmt::format("{}:{}", source, weights[i]));
      sources.formats[source] = llama_factory_format(entry, rows_);
    }
    return sources;
  }

  ForeignSettings& settings_;
  LlamaFactoryRows rows_;
  bool has_template_ = false;
};

}  // namespace

void translate_llama_factory_datasets(ForeignSettings* settings) { LlamaFactoryDatasets(settings).run(); }

}  // namespace tessera
