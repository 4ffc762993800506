// The settings of a run with where each comes from, for `tessera config show`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "settings/run_settings.h"

namespace tessera {

const char* origin_name(SettingOrigin origin);  // "default", "flag", "file", ...

struct ResolvedSetting {
  std::string name;
  nlohmann::json value;
  nlohmann::json default_value;
  SettingOrigin origin = SettingOrigin::kDefault;
  std::string
      source;  // "run.yaml:7", "ds.json: zero_optimization.stage", "from dtype"; "" where none is needed
};

// The resolved value of each setting, in the order of the flags: `spec` is read_run_spec(table, given, ...).
std::vector<ResolvedSetting> settings_with_origins(const FlagTable& table, const RunSpec& given,
                                                   const RunSpec& spec);

// The honoured settings by name, each in JSON of its type; null for none.
nlohmann::json setting_values(const RunSpec& spec);

}  // namespace tessera
