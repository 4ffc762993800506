// Context parallelism (context/context_team.h): context_parallel_size.
#pragma once

#include <cstdint>

#include "base/flags.h"
#include "settings/run_settings.h"

namespace tessera {

void declare_context_flags(FlagTable* table, RunSpec* args);

// Error(kBadConfig) unless that many ranks form teams.
void check_context_ranks(const RunSpec& args, int64_t world_size);
// Error(kBadConfig) for settings that contradict each other. Call once everything else is resolved.
void check_context_arguments(const RunSpec& args);

// Ranks, or teams of them, each with rows of its own.
int64_t num_row_ranks(const RunSpec& args, int64_t world_size);

}  // namespace tessera
