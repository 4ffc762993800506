// What a run keeps on a disk instead of in memory: offload_optimizer_device,
// gradient_checkpointing_mode offload, offload_dir, aio_*.
#pragma once

#include "arguments/arguments.h"
#include "base/flags.h"

namespace tessera {

void declare_offload_flags(FlagTable* table, TrainingArguments* args);

// Sets offload_dir if something goes there. Error(kBadConfig) if a setting makes no sense.
void resolve_offload(const FlagTable& table, int64_t world_size, TrainingArguments* args);

}  // namespace tessera
