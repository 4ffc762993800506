#include "cli/program/commands.h"

#include <algorithm>

#include "base/text.h"

namespace tessera {

// In the order in which help lists them. The file of a command defines make_NAME_command().
// clang-format off
#define TESSERA_COMMANDS(EACH) \
  EACH(init) EACH(tokenizer_train) EACH(tokenize) EACH(detokenize) EACH(data_preview) EACH(data_stats) EACH(train) \
  EACH(launch) EACH(watch) EACH(status) EACH(plan) EACH(plan_search) EACH(simulate) EACH(report) EACH(eval) \
  EACH(generate) EACH(chat) EACH(export) EACH(merge) EACH(inspect) EACH(pull) EACH(checkpoint_list) \
  EACH(checkpoint_verify) EACH(doctor) EACH(bench) EACH(bench_network) EACH(deploy_cluster) EACH(deploy_kubernetes) \
  EACH(deploy_runtime) EACH(deploy_queue) EACH(deploy_dashboards) EACH(deploy_alerts) EACH(deploy_convert) \
  EACH(deploy_debug) EACH(deploy_lint) EACH(deploy_templates) EACH(config_show) EACH(completion) EACH(help)
// clang-format on

#define TESSERA_DECLARE(name) std::unique_ptr<Command> make_##name##_command();
TESSERA_COMMANDS(TESSERA_DECLARE)

Commands commands() {
  Commands all;
#define TESSERA_MAKE(name) all.push_back(make_##name##_command());
  TESSERA_COMMANDS(TESSERA_MAKE)
  return all;
}

Command* find_command(const Commands& all, const std::vector<std::string>& words, size_t* num_words) {
  Command* found = nullptr;
  *num_words = 0;
  for (const auto& command : all) {
    const std::vector<std::string> name = split(command->name(), ' ');
    if (name.size() <= *num_words || name.size() > words.size()) continue;
    if (!std::equal(name.begin(), name.end(), words.begin())) continue;
    found = command.get();
    *num_words = name.size();
  }
  return found;
}

}  // namespace tessera
