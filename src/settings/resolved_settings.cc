#include "settings/resolved_settings.h"

#include <cstdlib>
#include <map>

#include "base/error.h"

namespace tessera {
namespace {

using nlohmann::json;

// The settings from which read_run_spec() derives another one.
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

std::string shown(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

json value_of(const Flag& flag) {
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

}  // namespace

json setting_values(const RunSpec& spec) {
  RunSettings copy = spec;
  FlagTable table;
  declare_training_flags(&table, &copy);
  json values = json::object();
  for (const Flag& flag : table.flags()) {
    if (flag.get) values[flag.name] = value_of(flag);
  }
  return values;
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
    case SettingOrigin::kFsdp:
      return "fsdp";
    case SettingOrigin::kCheckpoint:
      return "checkpoint";
    case SettingOrigin::kDerived:
      break;
  }
  return "derived";
}

std::vector<ResolvedSetting> settings_with_origins(const FlagTable& table, const RunSpec& given,
                                                   const RunSpec& spec) {
  const json defaults = setting_values(RunSpec()), before = setting_values(given), now = setting_values(spec);
  std::vector<ResolvedSetting> settings;
  for (const Flag& flag : table.flags()) {
    if (!defaults.contains(flag.name)) continue;  // a flag of the command that shows them
    ResolvedSetting setting;
    setting.name = flag.name;
    setting.value = now.at(flag.name);
    setting.default_value = defaults.at(flag.name);
    const auto source = spec.sources.given.find(flag.name);
    const bool is_given = source != spec.sources.given.end() &&
                          (table.is_set(flag.name) || source->second.origin == SettingOrigin::kDeepSpeed);
    const json& was = before.at(flag.name);
    if (is_given && (source->second.origin == SettingOrigin::kDeepSpeed || setting.value == was)) {
      setting.origin = source->second.origin;
      setting.source = source->second.where;
    } else if (is_given) {
      setting.origin = SettingOrigin::kDerived;
      setting.source = fmt::format("from {} ({})", shown(was), table.origin(flag.name));
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
