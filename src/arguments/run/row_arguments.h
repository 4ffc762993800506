// The settings by which rows are packed, ordered and averaged.
#pragma once

#include "arguments/arguments.h"

namespace tessera {

// Makes shuffle and train_sampling_strategy agree. Error(kBadConfig) if they contradict each other.
void resolve_data_order(const FlagTable& table, TrainingArguments* args);
// Error(kBadConfig) for contradictions; warns of what has no effect.
void check_packing(const FlagTable& table, const TrainingArguments& args);
// Error(kBadConfig) if average_tokens_across_devices false cannot be honoured.
void check_token_average(const TrainingArguments& args, int64_t world_size);

}  // namespace tessera
