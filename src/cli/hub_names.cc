#include "cli/hub_names.h"

#include <vector>

#include "cli/terminal/hub_report.h"

namespace tessera {

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
    const std::string name = parse_data_source(entry).paths[0];
    if (!hub_dataset_name(name) || args->hub_files.contains(name)) continue;
    HubReport report;
    for (const std::filesystem::path& file :
         resolve_dataset(name, hub_settings(), [&](const HubProgress& progress) { report.show(progress); }))
      args->hub_files[name].push_back(file.string());
  }
}

}  // namespace

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
    for (const std::string& name : names) folders.push_back(local_model(name, files));
    if (folders == names) continue;
    flag.set(folders);
    command.on_hub_names(flag.name, names);
  }
}

}  // namespace tessera
