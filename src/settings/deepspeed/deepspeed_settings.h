// Applies a DeepSpeed configuration to the arguments of a run.
#pragma once

#include <string>
#include <vector>

#include "base/flags.h"
#include "settings/deepspeed/deepspeed_file.h"
#include "settings/run_settings.h"

namespace tessera {

// Sets what the configuration decides. `table` knows which flags were given, on the command line or in a
// configuration file; batch sizes are for `world_size` ranks:
//   key "auto"          the flag, or its default
//   key with a value    that value; a flag that was given must agree
//   key absent          DeepSpeed's default (ds_compat), with a warning if a flag disagrees;
//                       the flag for batch sizes, bf16 and what only decides where work is done
// All mismatches are reported in one kBadConfig, as Hugging Face's Trainer does. A value outside the flag's
// range is kBadConfig. Keys without effect are logged, one line per reason.
void apply_deepspeed(const DeepSpeedFile& file, const FlagTable& table, int64_t world_size,
                     RunSettings* spec);

// The values of ds_compat; the first is the default.
std::vector<std::string> deepspeed_releases();

}  // namespace tessera
