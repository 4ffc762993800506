#include "settings/run_settings.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/ranks/launch_variables.h"
#include "optim/schedule.h"
#include "settings/config_file.h"
#include "settings/deepspeed/deepspeed_settings.h"
#include "settings/derived.h"
#include "settings/fsdp/fsdp_settings.h"
#include "settings/resolve.h"
#include "settings/resolved_settings.h"

namespace tessera {
namespace {

using nlohmann::json;

void apply_resume_variable(const Environment& environment, FlagTable* table, RunSettings* spec) {
  const std::string value = environment(kResumeVariable).value_or("");
  if (value.empty()) return;
  if (value != "auto") {
    fail(ExitCode::kBadConfig, "environment: expected {} to be auto, found '{}'", kResumeVariable,
         printable(value));
  }
  if (!table->is_set("resume_from_checkpoint")) {
    table->set(*table->find("resume_from_checkpoint"), {value}, kResumeVariable);
    spec->resume.by_agent = true;
  }
}

void read_launch_variables(const Environment& environment, RunSettings* spec) {
  spec->launch.id = environment(kLaunchIdVariable).value_or("");
  spec->launch.is_restart = !environment(kResumeVariable).value_or("").empty();
  const std::string grace = environment(kTerminationGraceVariable).value_or("");
  if (grace.empty()) return;
  double seconds = -1;
  const auto [rest, error] = std::from_chars(grace.data(), grace.data() + grace.size(), seconds);
  if (error != std::errc() || *rest != '\0' || !(seconds >= 0)) {
    fail(ExitCode::kBadConfig, "environment: expected {} to be a number of seconds, found '{}'",
         kTerminationGraceVariable, printable(grace));
  }
  spec->launch.grace_s = seconds;
}

// Settings from a DeepSpeed file are noted as it is read.
void note_sources(const FlagTable& table, SettingSources* sources) {
  for (const Flag& flag : table.flags()) {
    if (!table.is_set(flag.name)) continue;
    const std::string where = table.origin(flag.name);
    sources->given.try_emplace(
        flag.name, where == kCommandLineOrigin ? SettingSource{SettingOrigin::kFlag, ""}
                   : where == kResumeVariable  ? SettingSource{SettingOrigin::kEnvironment, where}
                   : sources->fsdp.sets.contains(flag.name) ? SettingSource{SettingOrigin::kFsdp, where}
                                                            : SettingSource{SettingOrigin::kFile, where});
  }
  if (const auto off = sources->given.find("disable_gradient_checkpointing"); off != sources->given.end())
    sources->given.try_emplace("gradient_checkpointing", off->second);
}

}  // namespace

ResumeSpec parse_resume(const std::string& text) {
  using enum ResumeSpec::From;
  const std::string word = lower_case(text);
  if (word.empty() || word == "false" || word == "none" || word == "no") return {};
  if (word == "true" || word == "yes") return {kNewest, ""};
  if (word == "auto") return {kNewestIfAny, ""};
  return {kFolder, text};
}

std::string resume_text(const ResumeSpec& resume) {
  using enum ResumeSpec::From;
  return resume.from == kNothing       ? ""
         : resume.from == kNewest      ? "true"
         : resume.from == kNewestIfAny ? "auto"
                                       : resume.folder;
}

void read_setting_files(FlagTable* table, RunSettings* spec) {
  if (!spec->sources.config.empty()) apply_config_file(spec->sources.config, table);
  apply_script_arguments(table, spec);
  apply_fsdp(table, spec);
}

void read_environment(const Environment& environment, FlagTable* table, RunSettings* spec) {
  apply_resume_variable(environment, table, spec);
  read_launch_variables(environment, spec);
}

RunSpec read_run_spec(const FlagTable& table, const RunSpec& given, int64_t world_size) {
  TESSERA_CHECK(world_size >= 1, "world_size={}", world_size);
  RunSettings spec = given;
  if (!spec.sources.deepspeed.empty()) {
    apply_deepspeed(read_deepspeed(spec.sources.deepspeed), table, world_size, &spec);
  } else {
    warn_if_set(table, {"ds_compat"}, "there is no deepspeed file");
  }
  if (table.is_set("grace_period_s") && spec.time_to_end_s() < spec.grace_period_s) {
    log_warning(
        "grace_period_s {}: tessera launch kills its ranks {} s after a signal, and the shorter time "
        "applies; give it a longer --termination_grace_s",
        spec.grace_period_s, spec.launch.grace_s);
  }
  check_lora(table, spec);
  check_base_quantization(table, spec.base, spec.lora.finetuning_type);
  note_sources(table, &spec.sources);
  resolve_dtype(table, &spec.precision);
  check_context_ranks(spec.sharding.context_parallel_size, world_size);
  resolve_batch(table, num_row_ranks(spec.sharding, world_size), &spec);
  check_checkpointing(table, spec.placement);
  resolve_ranks(table, world_size, &spec);
  resolve_placement(table, world_size, &spec);
  check_optimizer(table, spec.optimizer, spec.saving);
  check_device(spec, world_size);
  check_outer(table, spec);
  check_context(spec);
  resolve_spool(table, spec.batch, &spec.data);
  resolve_data_order(table, &spec);
  check_packing(table, spec.data);
  check_token_average(spec, world_size);
  check_streaming(spec.data, spec.batch);
  check_quiet(spec.reporting);
  resolve_evaluation(&spec);
  resolve_best_model(table, &spec);
  resolve_schedule(&spec);
  return spec;
}

void resolve_placement(const FlagTable& table, int64_t world_size, RunSettings* spec) {
  resolve_optimizer_in_backward(table, world_size, spec);
  resolve_offload(table, world_size, spec);
}

json training_arguments(const RunSpec& spec) {
  json out = setting_values(spec);
  for (const auto& [flag, name] : spec.model.hub_names) out[flag] = name;
  return out;
}

std::string training_arguments_json(const RunSpec& spec) { return training_arguments(spec).dump(2) + "\n"; }

}  // namespace tessera
