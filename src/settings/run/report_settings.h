// Where a run reports to: report_to, logging_dir, run_name.
#pragma once

#include <string>
#include <vector>

#include "base/flags.h"
#include "settings/foreign/foreign_datasets.h"
#include "settings/run_settings.h"

namespace tessera {

void declare_report_flags(FlagTable* table, RunSpec* args);

// Services of Hugging Face's report_to that are not supported: the command line refuses them; of a
// configuration file this drops them with a warning, unless a flag of `table` overrides the setting.
void drop_unsupported_services(const std::string& origin, const FlagTable& table,
                               std::vector<ConfigSetting>* settings);

}  // namespace tessera
