// The flags of `tessera train` that say how a run is laid out on machines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forecast/instances/search.h"

namespace tessera {

bool is_layout_flag(const std::string& name);

// The flags that set this layout: "--zero_stage 3".
std::vector<std::string> layout_words(const RunLayout& layout, int64_t step_rows);

// The options fixed by settings on the command line or in a file: stage, schedule and checkpointing. `given`
// is not resolved yet.
SearchOptions asked_options(const ShardingSpec& sharding, const PlacementSpec& placement,
                            bool checkpointing_is_given);

}  // namespace tessera
