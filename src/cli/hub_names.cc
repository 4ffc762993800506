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

void resolve_hub_names(Command& command, FlagTable* table) {
  for (const Flag& flag : table->flags()) {
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
