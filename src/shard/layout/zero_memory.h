// Memory and network traffic of a sharded run, as closed forms of its sizes alone: the prediction equals what
// is allocated, and a run's counters are compared with it.
//
// P elements of weights, K nodes of L ranks, N = K L; w bytes per weight (2 or 4), g per element of a
// gradient accumulator (4, or 2 if BF16). Parts are those of ShardPlan, so a rank has 1/N up to alignment.
//
//   weights        w P per node; stage 3 with per_layer: w P/K and the gathered layers in use
//   optimizer      its state (AdamW: 8 bytes) and, for BF16 weights, 2 bytes (master remainders) per owned
//                  element: P/N elements; in stage 0 every node has all of them, P/L per rank. On disk: a
//                  few buffers. State by rows, columns or some parameters only is added up from the shapes;
//                  updates of whole parameters have a workspace
//   accumulators   g P/L per rank if a node sums the whole gradient before it uses the network: stages 0 and
//                  1, and per_step with several passes; otherwise g P/N
//   layer buffers  float32, one set per rank: two decoder layers and the larger of embedding and head. Not
//                  needed if a rank is alone on its node and its accumulators are complete and float32: the
//                  model then adds to them directly, or, on a device with memory of its own, has the only
//                  pass of a step copied there
//   on the network float32, two shares of the largest group per rank, if neither accumulators nor layer
//                  buffers have room for them: accumulators that are complete but BF16, or that hold just the
//                  own part with several ranks on a node
//   in backward    a rank alone that updates groups in the backward pass has float32 gradients of the largest
//                  group only (with tied embeddings also of the embedding). It may have the weights of
//                  decoder layers on disk, with a few of them in memory (shard/layout/weight_window.h)
//   rounding       float32, 4 MiB per rank, if accumulators are BF16
//   feedback       the errors of quantized gradients between nodes: BF16, P/L per rank
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/network/network_group.h"
#include "kernels/quantized_weight/gradient_blocks.h"
#include "optim/optimizer_state.h"
#include "optim/state_file.h"
#include "optim/state_tensor.h"
#include "shard/layout/memory_item.h"
#include "shard/layout/outer_settings.h"
#include "shard/layout/shard_plan.h"
#include "tensor/dtype.h"

namespace tessera {

enum class GatherSchedule {
  kPerStep,  // weights stay complete on every node for the whole optimizer step
  kPerLayer  // stage 3: weights are gathered when a layer needs them, gradients leave after every pass
};

struct ZeroParameter {
  Part elements;
  ParameterShape shape;
};

// The sizes that determine memory and traffic.
struct ZeroLayout {
  std::vector<Part> groups;  // embedding, decoder layers, final norm and head: at least two
  int64_t alignment = 1;     // of part boundaries, in elements
  int num_nodes = 1;
  int local_world_size = 1;
  bool tied_embeddings = false;  // the gradients of group 0 are in use from the head to the end of a pass
  std::vector<ZeroParameter> parameters = {};  // ascending; needed unless state is elementwise
  // By group: where each of its experts begins, in the order of experts, which end with the group.
  std::vector<std::vector<int64_t>> expert_begins = {};

  int world_size() const { return num_nodes * local_world_size; }
  int64_t num_elements() const;  // in all groups
};

// The settings that determine them. Defaults are DeepSpeed's.
struct ZeroSettings {
  int stage = 3;
  GatherSchedule schedule = GatherSchedule::kPerStep;
  int64_t passes_per_step = 1;
  DType weight_dtype = DType::kBF16;   // BF16 or F32
  DType network_dtype = DType::kBF16;  // of gradients between nodes, BF16 or F32
  bool quantized_weights = false;      // between nodes, in blocks of int8; needs BF16 weights
  // Between nodes gradients travel in such blocks instead of network_dtype, with error feedback.
  std::optional<GradientCode> quantized_gradients = {};
  DType gradient_dtype = DType::kF32;         // of the accumulators, BF16 or F32
  int64_t max_live_elements = 1'000'000'000;  // stage3_max_live_parameters
  int64_t prefetch_elements = 50'000'000;     // stage3_prefetch_bucket_size
  bool overlap = true;                        // of network and computation; otherwise transfers block
  int64_t persistence_threshold = 100'000;    // groups up to this size stay complete on every node
  StateTensors state_tensors = {};            // of the optimizer
  // Nodes train on their own, each as a job of one node, and exchange their weights now and then
  // (shard/outer/outer_plan.h).
  std::optional<OuterSettings> outer = {};
  int64_t update_workspace_bytes = 0;  // of the optimizer, for the largest parameter
  bool optimizer_in_backward = false;  // groups are updated in the backward pass
  // If the model is on another device: the host updates its weights, or also keeps them and their gradients
  // except while layers are in use (device_window_places.h).
  bool optimizer_on_host = false;
  bool parameters_on_host = false;
  // Nodes own the experts that they compute, for the tokens of all (ops/expert_exchange.h): these cross no
  // network. With sharded weights and elementwise state only.
  bool divides_experts = false;
  bool computes_twice = false;  // a step's pass, first for the gradient norm alone
  // On one rank, with optimizer_in_backward: the weights of decoder layers are in a file in this folder.
  std::optional<StateFileSettings> weight_folder = {};
  // On one rank, of the weights beside adapters: those of decoder layers are in a file in this folder.
  std::optional<StateFileSettings> frozen_folder = {};
  // State and remainders are in a file per rank in this folder, with buffers in memory for as many chunks as
  // its chunks_ahead says.
  std::optional<StateFileSettings> state_folder = {};
};

// The owners of all elements: parameters that the optimizer needs whole are not cut.
ShardPlan shard_plan(const ZeroLayout& layout, const ZeroSettings& settings);
// Bytes of the state tensors for what a rank owns, or a rail: the most that any has.
int64_t largest_state_bytes(const ZeroLayout& layout, const ZeroSettings& settings, bool of_rail);

// Where a rank that updates in the backward pass has the float32 gradients of each group, one group after the
// other in the same place.
struct GradientWindow {
  std::vector<int64_t> begin;  // by group
  int64_t num_elements = 0;
};
GradientWindow gradient_window(const ZeroLayout& layout);

// Chunks of a rank's state file that hold the state of one decoder layer: if as many are read ahead, all of
// that state moves while the layer computes.
int64_t layer_state_chunks(const ZeroLayout& layout, const ZeroSettings& settings);

// Whether the group stays complete on every node when weights are sharded.
bool is_persistent(const ZeroLayout& layout, const ZeroSettings& settings, int64_t group);
// Whether weights are complete on a node only while in use.
bool shards_weights(const ZeroLayout& layout, const ZeroSettings& settings);
// Whether a node sums the whole gradient of the step and uses the network once, at the end.
bool accumulates_whole_gradient(const ZeroLayout& layout, const ZeroSettings& settings);
// Whether data crossing the network needs memory of its own.
bool needs_staging(const ZeroLayout& layout, const ZeroSettings& settings);
// Whether the errors of quantized gradients are kept, one for each element of a rank's share.
bool has_gradient_feedback(const ZeroLayout& layout, const ZeroSettings& settings);
// The nodes over which parameters are sharded: one, where nodes train on their own.
inline int sharding_nodes(const ZeroSettings& settings, int num_nodes) {
  return settings.outer ? 1 : num_nodes;
}
// The tensors of the state of a run: the optimizer's, then kOuterMomentum or kGradientFeedback where it is
// kept.
std::vector<StateTensor> saved_tensors(const ZeroSettings& settings, int num_nodes);
// Elements of BF16 accumulators processed at a time: their float32 sums stay in cache until rounded.
inline constexpr int64_t kRoundingElements = int64_t{1} << 20;
// Whether every rank has buffers in shared memory into which its model writes the gradients of a layer.
bool needs_layer_buffers(const ZeroLayout& layout, const ZeroSettings& settings);
// Gathered decoder layers in memory at once when weights are sharded: the one in use and at least one fetched
// ahead, as many as prefetch_elements and max_live_elements (less the larger of embedding and head) allow.
int64_t num_live_layers(const ZeroLayout& layout, const ZeroSettings& settings);

// Memory in which the ranks of a node show rank 0 their master weights: what write_safetensors asks for at a
// time.
inline constexpr int64_t kMasterExportBytes = 4 << 20;

// Bytes of each allocation, for the node or rank that has the most: the first one.
struct ZeroMemory {
  // Shared, once per node.
  int64_t weight_bytes = 0;        // all weights, or the node's parts of them
  int64_t live_weight_bytes = 0;   // gathered: layers, embedding or head, and what is persistent
  int64_t layer_buffer_bytes = 0;  // gradients in flight, of all ranks of the node
  // Private to each rank.
  int64_t accumulator_bytes = 0;
  int64_t staging_bytes = 0;    // node sums on the network
  int64_t rounding_bytes = 0;   // sums before rounding to BF16
  int64_t feedback_bytes = 0;   // errors of quantized gradients
  int64_t optimizer_bytes = 0;  // state tensors or buffers for them, and the scratch of the gradient norm
  int64_t remainder_bytes = 0;  // of the master weights
  int64_t workspace_bytes = 0;  // of the update
  // On disk, of each rank: both, if they are there.
  int64_t state_file_bytes = 0;
  int64_t discarded_file_bytes = 0;  // of the state file, before the finished model is written
  int64_t state_ahead_bytes = 0;     // of the state file, read ahead of an update
  int64_t weight_file_bytes = 0;
};

ZeroMemory zero_memory(const ZeroLayout& layout, const ZeroSettings& settings);
// The memory as ledger entries; zero-sized items are left out.
std::vector<MemoryItem> zero_memory_items(const ZeroLayout& layout, const ZeroSettings& settings);

// Payload between nodes per optimizer step, sent and received by all ranks of a node. With parts of equal
// size each is (K - 1) / K for every element that crosses, times w when gathered and times the size of
// network_dtype when reduced:
//   gather  stages 1 to 3: everything once, after the step. Sharded weights with p passes: persistent groups
//           once; embedding and head p times; n decoder layers with S in memory at once: S + 2 p (n - S)
//           Quantized weights: 1 + 4 / 128 instead of w, each part rounded up to whole blocks
//   reduce  everything once, at the end of the step, or in every pass if accumulators are not complete.
//           Quantized gradients: 1 + 4 / 128 or (1 + 8 / 128) / 2, each part rounded up to whole blocks.
//           Stage 0: once more, in the accumulators' type, because every node needs the whole sum
struct WireBytes {
  int64_t sent_gather = 0;
  int64_t received_gather = 0;
  int64_t sent_reduce = 0;
  int64_t received_reduce = 0;
  int64_t tokens = 0;  // of rows or experts that ranks share, sent and received (plan/)

  int64_t sent() const { return sent_gather + sent_reduce + tokens; }
  int64_t received() const { return received_gather + received_reduce + tokens; }
};

WireBytes wire_bytes_per_step(const ZeroLayout& layout, const ZeroSettings& settings, int node_rank);

}  // namespace tessera
