// Where a run reports to: report_to.
#pragma once

#include <string>
#include <vector>

#include "base/flags.h"
#include "settings/foreign/foreign_datasets.h"
#include "settings/run_settings.h"

namespace tessera {

// What report_to asks for, in the order of the sinks' words, each once; empty for nothing besides what is
// always written. Error(kUsage).
std::vector<ReportTo> read_report_to(const std::vector<std::string>& given);
std::vector<std::string> report_to_words(const std::vector<ReportTo>& sinks);

// Services of Hugging Face's report_to that are not supported: the command line refuses them; of a
// configuration file this drops them with a warning, unless a flag of `table` overrides the setting.
void drop_unsupported_services(const std::string& origin, const FlagTable& table,
                               std::vector<ConfigSetting>* settings);

}  // namespace tessera
