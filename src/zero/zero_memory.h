// How much memory and how much network a sharded run takes, as closed forms of sizes alone: what is predicted
// is what is allocated, and what the counters of a run are compared with.
//
// P elements of weights, K nodes of L ranks, N = K L; w bytes per weight (2 or 4), g per element of a
// gradient accumulator (4, or 2 when they are BF16). Parts are those of ShardPlan, so that a rank has 1/N up
// to its alignment.
//
//   weights        w P per node; stage 3 under per_layer: w P/K and the gathered layers in use
//   optimizer      8 bytes (moments) and, for BF16 weights, 2 (master remainders) per owned element, which
//                  are P/N; in stage 0 every node has all of them, P/L per rank
//   accumulators   g P/L per rank where a node sums up the whole gradient before the network is used:
//                  stages 0 and 1, and per_step with several passes; otherwise g P/N
//   layer buffers  float32, one set per rank: two decoder layers and the larger of embedding and head. Not
//                  needed where a rank is alone on its node and its accumulators are complete and float32:
//                  the model then adds to them directly
//   on the network float32, two shares of the largest group per rank, where neither accumulators nor layer
//                  buffers have room for them: accumulators that are complete but BF16, or of an own part
//                  with several ranks on a node
//   rounding       float32, 4 MiB per rank, where accumulators are BF16
#pragma once

#include <cstdint>
#include <vector>

#include "comm/network_group.h"
#include "tensor/dtype.h"
#include "zero/memory_item.h"

namespace tessera {

enum class GatherSchedule {
  kPerStep,  // weights stay complete on every node for the whole optimizer step
  kPerLayer  // stage 3: weights are gathered when a layer needs them, gradients leave after every pass
};

// Sizes that decide.
struct ZeroLayout {
  std::vector<Part> groups;  // embedding, decoder layers, final norm and head: at least two
  int64_t alignment = 1;     // of the cuts, in elements
  int num_nodes = 1;
  int local_world_size = 1;

  int world_size() const { return num_nodes * local_world_size; }
  int64_t num_elements() const;  // of all groups
};

// Settings that decide. Defaults are DeepSpeed's.
struct ZeroSettings {
  int stage = 3;
  GatherSchedule schedule = GatherSchedule::kPerStep;
  int64_t passes_per_step = 1;
  DType weight_dtype = DType::kBF16;          // BF16 or F32
  DType network_dtype = DType::kBF16;         // of gradients between nodes, BF16 or F32
  DType gradient_dtype = DType::kF32;         // of the accumulators, BF16 or F32
  int64_t max_live_elements = 1'000'000'000;  // stage3_max_live_parameters
  int64_t prefetch_elements = 50'000'000;     // stage3_prefetch_bucket_size
  bool overlap = true;                        // network and computing; otherwise what is begun is waited for
  int64_t persistence_threshold = 100'000;  // groups of at most so many elements stay complete on every node
};

// The group stays complete on every node when weights are sharded.
bool is_persistent(const ZeroLayout& layout, const ZeroSettings& settings, int64_t group);
// Weights are complete on a node only while they are in use.
bool shards_weights(const ZeroLayout& layout, const ZeroSettings& settings);
// A node sums up the whole gradient of the step; the network is used once, at its end.
bool accumulates_whole_gradient(const ZeroLayout& layout, const ZeroSettings& settings);
// What crosses the network has memory of its own.
bool needs_staging(const ZeroLayout& layout, const ZeroSettings& settings);
// Of BF16 accumulators at a time: their float32 sums stay in the caches until they are rounded.
inline constexpr int64_t kRoundingElements = int64_t{1} << 20;
// Every rank has buffers in shared memory into which its model writes the gradients of a layer.
bool needs_layer_buffers(const ZeroLayout& layout, const ZeroSettings& settings);
// Gathered decoder layers in memory at once when weights are sharded: the one in use and those fetched ahead,
// at least one, as far as prefetch_elements and max_live_elements (which the larger of embedding and head
// counts against) reach.
int64_t num_live_layers(const ZeroLayout& layout, const ZeroSettings& settings);

// Bytes of each allocation. Of the node or rank that has the most: the first one.
struct ZeroMemory {
  // Shared, once per node.
  int64_t weight_bytes = 0;        // all weights, or the node's parts of them
  int64_t live_weight_bytes = 0;   // gathered: layers, embedding or head, and what is persistent
  int64_t layer_buffer_bytes = 0;  // gradients on their way, of all ranks of the node
  // Private, of each rank.
  int64_t accumulator_bytes = 0;
  int64_t staging_bytes = 0;   // sums of a node on the network
  int64_t rounding_bytes = 0;  // sums before they are BF16
  int64_t moment_bytes = 0;    // and the scratch of the gradient norm
  int64_t remainder_bytes = 0;
};

ZeroMemory zero_memory(const ZeroLayout& layout, const ZeroSettings& settings);
// The same as entries of the ledger; what takes nothing is left out.
std::vector<MemoryItem> zero_memory_items(const ZeroLayout& layout, const ZeroSettings& settings);

// Payload between nodes of one optimizer step, sent by all ranks of a node and received by them. With parts
// of one size both are (K - 1) / K for every element that crosses, times w when it is gathered and times the
// size of network_dtype when it is reduced:
//   gather  stages 1 to 3: all once, after the step. Sharded weights of p passes: persistent groups once;
//           embedding and head p times; of n decoder layers, S of them in memory at once, S + 2 p (n - S)
//   reduce  all once, at the end of the step; in every pass where accumulators are not complete. Stage 0:
//   once
//           more, and then in the accumulators' type, as every node needs the whole sum
struct WireBytes {
  int64_t sent_gather = 0;
  int64_t received_gather = 0;
  int64_t sent_reduce = 0;
  int64_t received_reduce = 0;

  int64_t sent() const { return sent_gather + sent_reduce; }
  int64_t received() const { return received_gather + received_reduce; }
};

WireBytes wire_bytes_per_step(const ZeroLayout& layout, const ZeroSettings& settings, int node_rank);

}  // namespace tessera
