// The settings of a training run: Hugging Face's TrainingArguments by name, default and meaning, and
// Tessera's own.
//
// The exit code depends on where a wrong setting comes from: a value that is wrong by itself is kUsage on the
// command line and kBadConfig in a configuration file; settings that contradict each other or the model are
// kBadConfig.
#pragma once

#include <cstdint>
#include <string>

#include "base/flags.h"
#include "comm/ranks/world.h"
#include "settings/run_spec.h"

namespace tessera {

// Declares every flag of `tessera train` in `table`, bound to `args`, which must outlive it: the honoured
// ones, and the known ones that are ignored or refused.
void declare_training_flags(FlagTable* table, RunSpec* args);

// Ranks restarted by an agent resume from the last checkpoint: TESSERA_RESUME=auto sets
// resume_from_checkpoint unless something else has. Error(kBadConfig) for any other value.
void apply_resume_variable(const Environment& environment, FlagTable* table, RunSpec* args);
// Fills launch_id, is_restart and agent_grace_s. Error(kBadConfig).
void read_launch_variables(const Environment& environment, RunSpec* args);

// Call once all flags are set: applies the DeepSpeed file, fills in settings derived from others (dtype from
// bf16, eval_steps from logging_steps, ...) and refuses contradictions (kBadConfig). `table` knows which
// flags were given; batch sizes in a DeepSpeed file are for `world_size` ranks.
void resolve_run_spec(const FlagTable& table, int64_t world_size, RunSpec* args);

// Again, once settings have changed that say where the state of a run is and when it is updated (plan/forms).
void resolve_form(const FlagTable& table, int64_t world_size, RunSpec* args);

// Steps of a logging, evaluation or saving interval: `interval` itself or, if below 1, that fraction of all
// steps, rounded up.
int64_t interval_in_steps(double interval, int64_t num_training_steps);

// The honoured settings as a JSON object, for training_args.json: indent 2, sorted, trailing newline.
std::string training_arguments_json(const RunSpec& args);

}  // namespace tessera
