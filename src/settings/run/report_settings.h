// Where a run reports to: report_to.
#pragma once

#include <string>
#include <vector>

#include "base/flags.h"
#include "settings/foreign/foreign_datasets.h"
#include "settings/run_settings.h"

namespace tessera {

// The sinks that report_to asks for, in the order of their words, each once; empty if only the files that are
// always written are wanted. Error(kUsage).
std::vector<ReportTo> read_report_to(const std::vector<std::string>& given);
std::vector<std::string> report_to_words(const std::vector<ReportTo>& sinks);

// Services of Hugging Face's report_to that are not supported: the command line refuses them; of a
// configuration file this drops them with a warning, unless a flag of `table` overrides the setting.
void drop_unsupported_services(const std::string& origin, const FlagTable& table,
                               std::vector<ConfigSetting>* settings);

}  // namespace tessera
