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

// Declares every flag of `tessera train` in `table`, bound to `spec`, which must outlive it: the honoured
// ones, and the known ones that are ignored or refused.
void declare_training_flags(FlagTable* table, RunSpec* spec);

inline constexpr const char* kCommandLineOrigin = "command line";  // of flags that were given there

// The files that flags name: the configuration file, and what the arguments of TRL's scripts stand for.
void read_setting_files(FlagTable* table, RunSpec* spec);

// What `tessera launch` tells its ranks. Those that it restarts resume from the last checkpoint:
// TESSERA_RESUME=auto sets resume_from_checkpoint unless something else has. Error(kBadConfig) for any other
// value.
void read_environment(const Environment& environment, FlagTable* table, RunSpec* spec);

// Call once all flags are set: applies the DeepSpeed file, fills in settings derived from others (dtype from
// bf16, eval_steps from logging_steps, ...) and refuses contradictions (kBadConfig). `table` knows which
// flags were given; batch sizes in a DeepSpeed file are for `world_size` ranks.
void resolve_run_spec(const FlagTable& table, int64_t world_size, RunSpec* spec);

// Call again once settings have changed that say where the state is and when it is updated (forecast/fit).
void resolve_placement(const FlagTable& table, int64_t world_size, RunSpec* spec);

// The honoured settings as a JSON object, for training_args.json: indent 2, sorted, trailing newline.
std::string training_arguments_json(const RunSpec& spec);

}  // namespace tessera
