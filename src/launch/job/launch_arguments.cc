#include "launch/job/launch_arguments.h"

#include <algorithm>
#include <cctype>

#include "base/embedded_text.h"
#include "base/error.h"
#include "base/field_table.h"

namespace tessera {

std::span<const EmbeddedText> launch_flag_texts();  // launch/job/*.tsv

namespace {

const FieldTable& fields() {
  static const FieldTable kTable("flags", text_named(launch_flag_texts(), "flags"));
  return kTable;
}

// Where the ranks are and how they find each other.
void declare_job_flags(FlagTable* table, LaunchArguments* a) {
  table->begin_section("Job");
  fields().add(table, "nnodes", &a->nnodes);
  fields().add(table, "nproc_per_node", &a->nproc_per_node);
  fields().add(table, "node_rank", &a->node_rank);
  fields().add(table, "standalone", &a->standalone);
  fields().add(table, "rdzv_endpoint", &a->rdzv_endpoint);
  fields().add(table, "master_addr", &a->master_addr);
  fields().add(table, "master_port", &a->master_port);
  fields().add(table, "rdzv_backend", &a->rdzv_backend, {"static", "c10d"});
  fields().add(table, "rdzv_id", &a->rdzv_id);
  fields().add(table, "rdzv_conf", &a->rdzv_conf);
  fields().add(table, "rdzv_secret_file", &a->rdzv_secret_file);
}

void declare_run_flags(FlagTable* table, LaunchArguments* a) {
  table->begin_section("Failures");
  fields().add(table, "max_restarts", &a->max_restarts);
  fields().add(table, "max_idle_restarts", &a->max_idle_restarts);
  fields().add(table, "termination_grace_s", &a->termination_grace_s);
  fields().add(table, "under_controller", &a->under_controller);
  table->begin_section("Output");
  fields().add(table, "log_dir", &a->log_dir);
  fields().add(table, "redirects", &a->redirects);
  fields().add(table, "tee", &a->tee);
  fields().add(table, "local_ranks_filter", &a->local_ranks_filter);
  fields().add(table, "role", &a->role);
}

void declare_unsupported_flags(FlagTable* table) {
  const auto ignored = [&](const char* name, FlagType type, const char* value, const char* note) {
    table->add_unsupported(name, type, value, FlagStatus::kIgnored, note);
  };
  ignored("monitor_interval", FlagType::kFloat, "0.1", "a rank's exit is noticed at once");
  ignored("start_method", FlagType::kString, "spawn", "ranks are separate programs");
  ignored("no_python", FlagType::kBool, "false", "there is no Python");
  ignored("local_addr", FlagType::kString, "", "the address that reaches node 0 is used");
  ignored("event_log_handler", FlagType::kString, "null", "there are no such events");
  ignored("logs_specs", FlagType::kString, "", "log files are named as torchrun's default does");
  table->add_unsupported("module", FlagType::kBool, "false", FlagStatus::kRefused,
                         "there is no Python; a program follows --");
  table->add_unsupported("run_path", FlagType::kBool, "false", FlagStatus::kRefused,
                         "there is no Python; a program follows --");
}

std::string variable_name(const std::string& flag) {
  std::string name = "PET_" + flag;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

}  // namespace

void declare_launch_flags(FlagTable* table, LaunchArguments* arguments) {
  declare_job_flags(table, arguments);
  declare_run_flags(table, arguments);
  fields().add(table, "command", &arguments->command);
  declare_unsupported_flags(table);
}

void apply_pet_variables(const Environment& environment, FlagTable* table, LaunchArguments* arguments) {
  for (const Flag& flag : table->flags()) {
    if (flag.positional || table->is_set(flag.name)) continue;
    const std::string name = variable_name(flag.name);
    const std::optional<std::string> value = environment(name);
    if (!value || value->empty()) continue;
    try {
      table->set(flag, {*value}, name);
    } catch (const Error& error) {
      throw Error(ExitCode::kBadConfig, error.what());
    }
    arguments->set_by_variables.push_back(flag.name);
  }
}

}  // namespace tessera
