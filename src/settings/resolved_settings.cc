#include "settings/resolved_settings.h"

#include <cstdlib>
#include <map>

#include "base/error.h"
#include "comm/ranks/launch_variables.h"

namespace tessera {
namespace {

using nlohmann::json;

// What resolve_run_spec() derives a setting from.
const std::map<std::string, std::string> kDerivedFrom = {
    {"bf16", "dtype"},
    {"dtype", "bf16"},
    {"eval_steps", "logging_steps"},
    {"grad_accum_dtype", "dtype and the number of ranks"},
    {"gradient_accumulation_steps", "global_batch_size"},
    {"gradient_checkpointing", "disable_gradient_checkpointing"},
    {"greater_is_better", "metric_for_best_model"},
    {"merge_micro_batches", "optimizer_in_backward"},
    {"metric_for_best_model", "load_best_model_at_end"},
    {"packing", "neat_packing"},
    {"packing_strategy", "neat_packing"},
    {"save_dtype", "dtype"},
    {"shuffle", "train_sampling_strategy"},
    {"train_sampling_strategy", "shuffle"},
    {"zero_stage", "the number of ranks"},
};

std::map<std::string, json> values_of(const FlagTable& table) {
  std::map<std::string, json> values;
  for (const Flag& flag : table.flags()) {
    if (flag.get) values[flag.name] = setting_json(flag);
  }
  return values;
}

std::string shown(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

}  // namespace

json setting_json(const Flag& flag) {
  const std::vector<std::string> values = flag.get();
  if (flag.type == FlagType::kStringList) return values;
  if (values.empty()) return nullptr;
  switch (flag.type) {
    case FlagType::kBool:
      return values[0] == "true";
    case FlagType::kInt:
      return std::stoll(values[0]);
    case FlagType::kFloat:
      return std::strtod(values[0].c_str(), nullptr);
    default:
      break;
  }
  if (values[0].empty()) return nullptr;
  return values[0];
}

const char* origin_name(SettingOrigin origin) {
  switch (origin) {
    case SettingOrigin::kDefault:
      return "default";
    case SettingOrigin::kFlag:
      return "flag";
    case SettingOrigin::kFile:
      return "file";
    case SettingOrigin::kEnvironment:
      return "environment";
    case SettingOrigin::kDeepSpeed:
      return "deepspeed";
    case SettingOrigin::kDerived:
      break;
  }
  return "derived";
}

std::vector<ResolvedSetting> resolve_with_origins(const FlagTable& table, const std::string& command_line,
                                                  int64_t world_size, RunSpec* args) {
  RunSpec default_args;
  FlagTable default_table;
  declare_training_flags(&default_table, &default_args);
  const std::map<std::string, json> defaults = values_of(default_table);
  std::map<std::string, json> given = values_of(table);
  resolve_run_spec(table, world_size, args);

  std::vector<ResolvedSetting> settings;
  for (const Flag& flag : table.flags()) {
    const auto known = defaults.find(flag.name);
    if (known == defaults.end()) continue;  // a flag of the command that shows them
    ResolvedSetting setting;
    setting.name = flag.name;
    setting.value = setting_json(flag);
    setting.default_value = known->second;
    const std::string origin = table.origin(flag.name);
    const auto deepspeed = args->sources.deepspeed_origins.find(flag.name);
    if (deepspeed != args->sources.deepspeed_origins.end()) {
      setting.origin = SettingOrigin::kDeepSpeed;
      setting.source = deepspeed->second;
    } else if (!origin.empty() && setting.value == given[flag.name]) {
      setting.origin = origin == command_line      ? SettingOrigin::kFlag
                       : origin == kResumeVariable ? SettingOrigin::kEnvironment
                                                   : SettingOrigin::kFile;
      if (setting.origin != SettingOrigin::kFlag) setting.source = origin;
    } else if (!origin.empty()) {
      setting.origin = SettingOrigin::kDerived;
      setting.source = fmt::format("from {} ({})", shown(given[flag.name]), origin);
    } else if (setting.value != setting.default_value) {
      setting.origin = SettingOrigin::kDerived;
      const auto reason = kDerivedFrom.find(flag.name);
      if (reason != kDerivedFrom.end()) setting.source = "from " + reason->second;
    }
    settings.push_back(std::move(setting));
  }
  return settings;
}

}  // namespace tessera
