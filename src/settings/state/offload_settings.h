// What a run keeps in memory, recomputes, or keeps on a disk: gradient_checkpointing, merge_micro_batches,
// pack_weights, offload_*, aio_*.
#pragma once

#include "base/flags.h"
#include "settings/run_settings.h"

namespace tessera {

void declare_offload_flags(FlagTable* table, RunSpec* args);

// Sets offload_dir if something goes there. Error(kBadConfig) if a setting makes no sense.
void resolve_offload(const FlagTable& table, int64_t world_size, RunSpec* args);

}  // namespace tessera
