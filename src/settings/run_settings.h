// The settings of a training run: Hugging Face's TrainingArguments by name, default and meaning, and
// Tessera's own.
//
// The exit code depends on where a wrong setting comes from: a value that is wrong on its own is kUsage on
// the command line and kBadConfig in a configuration file; settings that contradict each other or the model
// are kBadConfig.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/flags.h"
#include "comm/ranks/world.h"
#include "settings/run_spec.h"

namespace tessera {

// Declares every flag of `tessera train` in `table`, bound to `spec`, which must outlive it: the honoured
// ones, and the known ones that are ignored or refused.
void declare_training_flags(FlagTable* table, RunSettings* spec);

inline constexpr const char* kCommandLineOrigin = "command line";  // of flags that were given there

// The files that flags name: the configuration file, and what the arguments of TRL's scripts stand for.
void read_setting_files(FlagTable* table, RunSettings* spec);

// Variables that `tessera launch` sets for its ranks. Ranks that it restarts resume from the last checkpoint:
// TESSERA_RESUME=auto sets resume_from_checkpoint unless something else has. Error(kBadConfig) for any other
// value.
void read_environment(const Environment& environment, FlagTable* table, RunSettings* spec);

// The settings of a run on `world_size` ranks. `given` holds the values of the flags of `table`, which knows
// the ones that were set; added are the settings of the DeepSpeed file, whose batch sizes are for these
// ranks, and those that follow from other settings (dtype from bf16, eval_steps from logging_steps, ...).
// Error(kBadConfig) for settings that contradict each other.
RunSpec read_run_spec(const FlagTable& table, const RunSpec& given, int64_t world_size);

// The honoured settings by name, and the text of training_args.json: sorted, indent 2, trailing newline.
nlohmann::json training_arguments(const RunSpec& spec);
std::string training_arguments_json(const RunSpec& spec);

}  // namespace tessera
