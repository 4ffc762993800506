// Values derived from the resolved settings of a run, for the rooms that execute it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "formats/huggingface/lora_config.h"
#include "formats/huggingface/model_config.h"
#include "settings/run_spec.h"
#include "shard/layout/outer_settings.h"
#include "shard/layout/zero_memory.h"
#include "tensor/quantization.h"

namespace tessera {

// Ranks, or teams of them that share rows, each with rows of its own.
int64_t num_row_ranks(const ShardingSpec& sharding, int64_t world_size);

// The sharding of parameters. gather_schedule auto is per_step here: memory decides later.
ZeroSettings zero_settings_of(const RunSpec& spec, const ModelConfig& config, int64_t passes_per_step);
// The state tensors that a run on `num_nodes` nodes saves.
std::vector<StateTensor> saved_tensors_of(const RunSpec& spec, int num_nodes);
// Whether gather_schedule auto becomes per_layer if memory is too short for per_step: in stage 3 with several
// nodes, unless packed weights were requested, which need per_step.
bool may_gather_per_layer(const RunSpec& spec, int num_nodes);
// nullopt without sync_every.
std::optional<OuterSettings> outer_settings_of(const OuterSettings& outer);

// nullopt = all weights are trained. Reads the configuration of adapter_name_or_path. Errors of
// read_lora_config(); kBadConfig for values that contradict each other.
std::optional<LoraConfig> lora_config_of(const LoraSpec& lora, const ModelSource& model,
                                         const ModelConfig& base = {});
// The form of the weights beside adapters.
Quantization base_quantization_of(const BaseSpec& base);

// The packing of a packing_strategy; auto depends on the rows (kByRows).
Packing packing_by_strategy(PackingStrategy strategy, bool joined);
// Error(kBadConfig): documents cannot see each other with this strategy, or without packing.
void check_joined(PackingStrategy strategy, bool joined, bool packing);
// Whether validation_split_percentage splits the documents before they are packed: if packing changes their
// order, so that the first rows are the longest documents, or if the two parts are packed in different ways.
// Otherwise it splits the rows.
bool splits_documents(const DataSpec& data);

inline constexpr int64_t kDefaultMetricsPort = 9404;
inline constexpr const char* kMetricsTokenVariable = "TESSERA_METRICS_TOKEN";
// The port on which ranks that serve metrics listen, 0 = any; nullopt = nothing is served.
std::optional<int64_t> serving_port(const ReportingSpec& reporting);

// Steps of a logging, evaluation or saving interval: `interval` itself or, if below 1, that fraction of all
// steps, rounded up.
int64_t interval_in_steps(double interval, int64_t num_training_steps);

}  // namespace tessera
