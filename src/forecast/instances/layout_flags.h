// Flags of `tessera train` and layouts of runs on machines: what flags say of the layout, and the command
// line for one that was found.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/flags.h"
#include "forecast/instances/search.h"

namespace tessera {

bool is_layout_flag(const std::string& name);

// The flags that set this layout: "--zero_stage 3".
std::vector<std::string> layout_words(const RunLayout& layout, int64_t step_rows);

// The options fixed by settings on the command line or in a file: stage, schedule and checkpointing. `given`
// is not resolved yet.
SearchOptions asked_options(const ShardingSpec& sharding, const PlacementSpec& placement,
                            bool checkpointing_is_given);

// The settings by which the rows of a step are known, for one rank unless what is set needs others, whose
// number *options then has: layouts have other numbers of ranks, and what is said of one would mislead. A
// DeepSpeed file settles stage and micro-batch as well.
RunSpec searched_spec(const FlagTable& table, const RunSpec& given, SearchOptions* options);

// A flag of `tessera train` as it was given.
struct GivenFlag {
  std::string name;
  std::vector<std::string> values;
};
// The command line that runs this layout, on its first node, as lines that a shell joins: what was given with
// the flags of the layout in place of its own, and placeholders for what a plan does not need.
std::string launch_command(const RunLayout& layout, int64_t step_rows, const std::vector<GivenFlag>& given,
                           const std::string& model_placeholder);

}  // namespace tessera
