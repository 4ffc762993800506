#include "cli/hub_names.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "cli/terminal/hub_report.h"
#include "hub/repo_name.h"
#include "settings/run/evaluation_sets.h"

namespace tessera {
namespace {

// The Hub redirects the old names, which had no organisation, to these.
constexpr std::string_view kOldNames[] = {"fancyzhx/ag_news",
                                          "google-bert/bert-base-uncased",
                                          "allenai/c4",
                                          "abisee/cnn_dailymail",
                                          "distilbert/distilgpt2",
                                          "nyu-mll/glue",
                                          "openai-community/gpt2",
                                          "openai/gsm8k",
                                          "stanfordnlp/imdb",
                                          "Skylion007/openwebtext",
                                          "rajpurkar/squad",
                                          "google-t5/t5-small",
                                          "Salesforce/wikitext"};

// A word that is no file, but what names on the Hub are without their organisation: those from before they
// had one are told theirs. Of other texts the command says what they lack.
void refuse_bare_name(const std::string& flag, const std::string& text) {
  const std::string name = text.substr(0, text.find_first_of(":@"));
  const auto* old = std::ranges::find_if(
      kOldNames, [&](std::string_view id) { return name == id.substr(id.find('/') + 1); });
  std::error_code error;
  if (old == std::end(kOldNames) || std::filesystem::exists(text, error)) return;
  fail(ExitCode::kNoInput,
       "--{} {}: No such file or directory; a name on the Hugging Face Hub is org/name: {}{}", flag, text,
       *old, text.substr(name.size()));
}

}  // namespace

std::string local_model(const std::string& name_or_path, ModelFiles files) {
  if (!hub_model_name(name_or_path)) return name_or_path;
  HubReport report;
  return resolve_model(name_or_path, files, hub_settings(),
                       [&](const HubProgress& progress) { report.show(progress); })
      .string();
}

namespace {

// Notes the files of the data sets that a flag names by their names on the Hub.
void find_dataset_files(const Flag& flag, DataArguments* args) {
  for (const std::string& entry : flag.get()) {
    const bool may_have_set = flag.name == "eval_dataset";
    const std::string name = parse_data_source(may_have_set ? source_of_entry(entry) : entry).paths[0];
    refuse_bare_name(flag.name, name);
    if (!hub_dataset_name(name) || args->hub_files.contains(name)) continue;
    HubReport report;
    for (const std::filesystem::path& file :
         resolve_dataset(name, hub_settings(), [&](const HubProgress& progress) { report.show(progress); }))
      args->hub_files[name].push_back(file.string());
  }
}

// True for flags that take files, folders or names on the Hub.
bool takes_hub_names(const Flag& flag) {
  return flag.name == "model" || flag.name == "models" || flag.name == "tokenizer" ||
         flag.name == "dataset" || flag.name == "eval_dataset";
}

}  // namespace

std::string bare_name_hint(const FlagTable& table, std::string_view message) {
  for (const Flag& flag : table.flags()) {
    if (!flag.get || !takes_hub_names(flag)) continue;
    for (const std::string& text : flag.get()) {
      std::error_code error;
      const bool is_bare = text.find('/') == text.npos && hub_dataset_name("owner/" + text) &&
                           !std::filesystem::exists(text, error);
      const std::string_view rest = message.starts_with(text) ? message.substr(text.size()) : "";
      if (is_bare && (rest.starts_with(": ") || rest.starts_with('/'))) {
        return fmt::format("; a name on the Hugging Face Hub has the form OWNER/NAME, --{} OWNER/{}",
                           flag.name, text);
      }
    }
  }
  return "";
}

void resolve_hub_names(Command& command, FlagTable* table) {
  if (!command.resolves_hub_names()) return;
  for (const Flag& flag : table->flags()) {
    if (flag.get && command.data_arguments() != nullptr &&
        (flag.name == "dataset" || flag.name == "eval_dataset")) {
      find_dataset_files(flag, command.data_arguments());
    }
    const bool is_model = flag.name == "model" || flag.name == "models";
    if (!flag.get || (!is_model && flag.name != "tokenizer")) continue;
    const ModelFiles files = is_model && command.reads_weights() ? ModelFiles::kAll : ModelFiles::kNoWeights;
    const std::vector<std::string> names = flag.get();
    std::vector<std::string> folders;
    for (const std::string& name : names) {
      if (!name.empty()) refuse_bare_name(flag.name, name);
      folders.push_back(local_model(name, files));
    }
    if (folders == names) continue;
    flag.set(folders);
    command.on_hub_names(flag.name, names);
  }
}

}  // namespace tessera
