// Experts divided among nodes (ops/expert_exchange.h): where that is possible, and its memory and traffic as
// closed forms.
#pragma once

#include <cstdint>
#include <string>

#include "plan/memory_plan.h"
#include "settings/run_spec.h"

namespace tessera {

// Why a run on these nodes cannot divide its experts, as what its setting cannot be combined with; "" if it
// can.
std::string expert_parallel_obstacle(const RunSpec& spec, const ModelConfig& config, int num_nodes);

// For rows of experts on their way, of a rank.
int64_t expert_buffer_bytes(const TrainableModel& model, const MemoryRequest& request);

// Layers whose experts are divided.
int64_t num_expert_layers(const ModelConfig& config);
// The rows of a layer of so many tokens. If tokens choose evenly, each node gets the same share of them.
int64_t expert_rows_bytes(const ModelConfig& config, DType dtype, int64_t num_tokens);
// How often they go to their experts or come back: rows and results; rows again, gradients of results and of
// rows.
inline constexpr int64_t kForwardExchanges = 2;
inline constexpr int64_t kBackwardExchanges = 3;

// Payload that a node sends, and receives, in a step whose passes are all as large as the largest; 0 unless
// experts are divided.
int64_t expert_wire_bytes(const TrainableModel& model, const MemoryRequest& request);

// Whether a step with divided experts takes less time on the network than `whole`, the same request with
// every node computing all experts. Nodes wait for rows, while a third of weights and gradients crosses as
// they compute: a byte of a row counts one and a half times.
bool divided_experts_are_faster(const TrainableModel& model, const MemoryRequest& divided,
                                const MemoryRequest& whole);

}  // namespace tessera
