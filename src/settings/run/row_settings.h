// The settings by which rows are packed, ordered and averaged.
#pragma once

#include "settings/run_settings.h"

namespace tessera {

// Makes shuffle and train_sampling_strategy agree. Error(kBadConfig) if they contradict each other.
void resolve_data_order(const FlagTable& table, RunSpec* args);
// The flags packing_strategy and packing_cross_document_attention.
void declare_packing_flags(FlagTable* table, PackingStrategy* strategy, bool* joined);
// What a packing_strategy is; auto depends on the rows (kByRows).
Packing packing_by_strategy(PackingStrategy strategy, bool joined);
// Error(kBadConfig): documents cannot see each other with this strategy, or without packing.
void check_joined(PackingStrategy strategy, bool joined, bool packing);
// Whether validation_split_percentage splits the documents before they are packed: if packing changes their
// order, so that the first rows are the longest documents, or if the two parts are packed in different ways.
// Otherwise it splits the rows.
bool splits_documents(const RunSpec& args);
// Error(kBadConfig) for contradictions; warns of what has no effect.
void check_packing(const FlagTable& table, const RunSpec& args);
// Error(kBadConfig) if average_tokens_across_devices false cannot be honoured.
void check_token_average(const RunSpec& args, int64_t world_size);

}  // namespace tessera
