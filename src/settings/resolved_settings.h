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

// Resolves the settings as resolve_run_spec() does and tells what each has become, in the order of
// the flags.
std::vector<ResolvedSetting> resolve_with_origins(const FlagTable& table, int64_t world_size, RunSpec* spec);

// The value of a flag as JSON of its type; null for none. The flag must have `get`.
nlohmann::json setting_json(const Flag& flag);

}  // namespace tessera
