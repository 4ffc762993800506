#include "shard/layout/zero_memory.h"

#include <algorithm>

#include "base/divide_up.h"
#include "base/error.h"
#include "kernels/quantized_weight/int8_blocks.h"
#include "optim/optimizer_state.h"
#include "shard/layout/fetch_order.h"
#include "shard/layout/weight_window.h"

namespace tessera {
namespace {

constexpr int64_t kBuffersInFlight = 2;  // one is written while the other is summed
constexpr int64_t kSharesInFlight = 2;   // one is summed while the other is on the network

// The elements a rank sums for its node: the parts of all groups that its rail owns.
struct RailShare {
  int64_t num_elements = 0;
  int64_t largest = 0;  // of a group
};

// The largest of any rank: the same on all nodes unless experts are divided.
RailShare rail_share(const ShardPlan& plan) {
  RailShare share;
  const int num_ranks = plan.divides_experts() ? plan.num_candidates()
                                               : std::min(plan.num_candidates(), plan.local_world_size());
  for (int rank = 0; rank < num_ranks; ++rank) {
    int64_t total = 0;
    for (int64_t g = 0; g < plan.num_groups(); ++g) {
      int64_t count = plan.expert_part(g, rank).size();
      for (const Part& part : plan.rail_parts(g, rank % plan.local_world_size())) count += part.size();
      share.largest = std::max(share.largest, count);
      total += count;
    }
    share.num_elements = std::max(share.num_elements, total);
  }
  return share;
}

// The values of state that belong to the parts.
ValueCounts value_counts(const ZeroLayout& layout, std::span<const Part> parts) {
  std::vector<ParameterRange> ranges;
  int64_t num_elements = 0;
  for (const Part& part : parts) {
    num_elements += part.size();
    auto parameter = std::ranges::upper_bound(layout.parameters, part.begin, {},
                                              [](const ZeroParameter& of) { return of.elements.end; });
    for (; parameter != layout.parameters.end() && parameter->elements.begin < part.end; ++parameter) {
      const int64_t begin = std::max(part.begin, parameter->elements.begin);
      const int64_t count = std::min(part.end, parameter->elements.end) - begin;
      if (count > 0)
        ranges.push_back({.begin = begin, .count = count, .weight_decay = true, .shape = parameter->shape});
    }
  }
  return {num_elements, ranges};
}

// The value counts of every rank, or rail. If tensors are elementwise there is one entry: the largest
// count.
std::vector<ValueCounts> value_counts(const ZeroLayout& layout, const ZeroSettings& settings, bool of_rail) {
  const ShardPlan plan = shard_plan(layout, settings);
  if (is_elementwise(settings.state_tensors))
    return {ValueCounts(of_rail ? rail_share(plan).num_elements : plan.largest_shard())};
  std::vector<ValueCounts> counts;
  for (int owner = 0; owner < (of_rail ? plan.local_world_size() : plan.world_size()); ++owner) {
    std::vector<Part> parts;
    for (int64_t g = 0; g < plan.num_groups(); ++g) {
      const std::vector<Part> of_group =
          of_rail ? plan.rail_parts(g, owner) : std::vector<Part>{plan.part(g, owner)};
      parts.insert(parts.end(), of_group.begin(), of_group.end());
    }
    counts.push_back(value_counts(layout, parts));
  }
  return counts;
}

// The most that any rank has.
StateOnDisk largest_state_on_disk(const ZeroLayout& layout, const ZeroSettings& settings) {
  StateOnDisk largest;
  for (const ValueCounts& counts : value_counts(layout, settings, settings.stage == 0)) {
    const StateOnDisk bytes = state_on_disk(settings.state_tensors, settings.weight_dtype, counts,
                                            settings.state_folder->chunks_ahead);
    largest.memory_bytes = std::max(largest.memory_bytes, bytes.memory_bytes);
    largest.ahead_bytes = std::max(largest.ahead_bytes, bytes.ahead_bytes);
    largest.file_bytes = std::max(largest.file_bytes, bytes.file_bytes);
    largest.discarded_bytes = std::max(largest.discarded_bytes, bytes.discarded_bytes);
  }
  return largest;
}

bool is_decoder_layer(const ZeroLayout& layout, size_t group) {
  return group > 0 && group + 1 < layout.groups.size();
}

int64_t largest_layer(const ZeroLayout& layout) {
  int64_t largest = 0;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    if (is_decoder_layer(layout, g)) largest = std::max(largest, layout.groups[g].size());
  }
  return largest;
}

int64_t larger_end(const ZeroLayout& layout) {
  TESSERA_CHECK(layout.groups.size() >= 2, "{} groups", layout.groups.size());
  return std::max(layout.groups.front().size(), layout.groups.back().size());
}

// Passes through the model per step; a step whose only pass is computed twice has two.
int64_t passes_through_model(const ZeroSettings& settings) {
  return settings.passes_per_step * (settings.computes_twice ? 2 : 1);
}

// Gathers of a group per optimizer step. With memory for S layers, the last S are still there at the start of
// a backward pass, and the first S at its end, for the next forward pass. Embedding and head alternate in one
// slot.
int64_t num_gathers(const ZeroLayout& layout, const ZeroSettings& settings, int64_t group) {
  if (settings.stage == 0) return 0;
  if (!shards_weights(layout, settings) || is_persistent(layout, settings, group)) return 1;
  const int64_t passes = passes_through_model(settings);
  const int64_t head = std::ssize(layout.groups) - 1;
  if (group == 0 || group == head) return is_persistent(layout, settings, head - group) ? 1 : passes;
  const int64_t num_layers = head - 1;
  const int64_t live = num_live_layers(layout, settings);
  const int64_t forward = group <= live ? 1 : passes;
  const int64_t backward = group > num_layers - live ? 0 : passes;
  return forward + backward;
}

// Bytes of a node's parts of a group, as they travel to one other node.
int64_t gathered_bytes(const ZeroSettings& settings, const ShardPlan& plan, int64_t group, int node) {
  if (!settings.quantized_weights) {
    return plan.node_part(group, node).size() * dtype_bytes(settings.weight_dtype);
  }
  int64_t bytes = 0;
  for (int rank = 0; rank < plan.local_world_size(); ++rank) {
    bytes += int8_blocks_bytes(plan.rail_part(group, node, rank).size());
  }
  return bytes;
}

// Bytes of a node's parts of a group, as one other node sends them in one reduction.
int64_t reduced_bytes(const ZeroSettings& settings, const ShardPlan& plan, int64_t group, int node) {
  if (!settings.quantized_gradients) {
    return plan.node_part(group, node).size() * dtype_bytes(settings.network_dtype);
  }
  int64_t bytes = 0;
  for (int rank = 0; rank < plan.local_world_size(); ++rank) {
    bytes += gradient_blocks_bytes(*settings.quantized_gradients, plan.rail_part(group, node, rank).size());
  }
  return bytes;
}

// "exp_avg, exp_avg_sq"; of more than two, for which a line of a table has no room, "exp_avg and 2 more".
std::string names_of(StateTensors tensors) {
  if (tensors.size() > 2) return fmt::format("{} and {} more", tensors.front().name, tensors.size() - 1);
  std::vector<std::string_view> names;
  for (const StateTensor& tensor : tensors) names.push_back(tensor.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

int64_t ZeroLayout::num_elements() const {
  int64_t count = 0;
  for (const Part& group : groups) count += group.size();
  return count;
}

ShardPlan shard_plan(const ZeroLayout& layout, const ZeroSettings& settings) {
  const StateTensors tensors = settings.state_tensors;
  if (settings.divides_experts) {
    TESSERA_CHECK(is_elementwise(tensors), "experts are divided, and {}", names_of(tensors));
    return {layout.groups, layout.alignment, layout.num_nodes, layout.local_world_size, layout.expert_begins};
  }
  if (is_elementwise(tensors))
    return {layout.groups, layout.alignment, layout.num_nodes, layout.local_world_size};
  TESSERA_CHECK(!layout.parameters.empty());
  std::vector<Part> indivisible;
  for (const ZeroParameter& parameter : layout.parameters) {
    if (is_indivisible(tensors, parameter.shape)) indivisible.push_back(parameter.elements);
  }
  return {layout.groups, layout.alignment, layout.num_nodes, layout.local_world_size, indivisible};
}

int64_t largest_state_bytes(const ZeroLayout& layout, const ZeroSettings& settings, bool of_rail) {
  int64_t largest = 0;
  for (const ValueCounts& counts : value_counts(layout, settings, of_rail)) {
    largest = std::max(largest, state_tensor_bytes(settings.state_tensors, counts));
  }
  return largest;
}

// A layer may begin and end within a chunk.
int64_t layer_state_chunks(const ZeroLayout& layout, const ZeroSettings& settings) {
  const int64_t num_owners = settings.stage == 0 ? layout.local_world_size : layout.world_size();
  const int64_t num_owned = divide_up(layout.num_elements(), num_owners);
  return divide_up(divide_up(largest_layer(layout), num_owners), StateFile::chunk_elements_of(num_owned)) + 1;
}

// If embeddings are tied, the last group is the final norm or an encoder's head, which is in use together
// with the embedding: it always stays.
bool is_persistent(const ZeroLayout& layout, const ZeroSettings& settings, int64_t group) {
  const int64_t size = layout.groups[static_cast<size_t>(group)].size();
  const bool is_last = group + 1 == std::ssize(layout.groups);
  return size <= settings.persistence_threshold ||
         (is_last && (layout.tied_embeddings || size < layout.groups.front().size() / 2));
}

bool shards_weights(const ZeroLayout& layout, const ZeroSettings& settings) {
  return layout.num_nodes > 1 && settings.stage == 3 && settings.schedule == GatherSchedule::kPerLayer;
}

bool accumulates_whole_gradient(const ZeroLayout& layout, const ZeroSettings& settings) {
  return layout.num_nodes == 1 || settings.stage <= 1 ||
         (settings.schedule == GatherSchedule::kPerStep && settings.passes_per_step > 1);
}

bool needs_layer_buffers(const ZeroLayout& layout, const ZeroSettings& settings) {
  return layout.local_world_size > 1 || !accumulates_whole_gradient(layout, settings) ||
         settings.gradient_dtype != DType::kF32 ||
         (settings.parameters_on_host && settings.passes_per_step > 1);
}

bool needs_staging(const ZeroLayout& layout, const ZeroSettings& settings) {
  if (layout.num_nodes == 1) return false;
  return accumulates_whole_gradient(layout, settings) ? settings.gradient_dtype != DType::kF32
                                                      : layout.local_world_size > 1;
}

bool has_gradient_feedback(const ZeroLayout& layout, const ZeroSettings& settings) {
  return layout.num_nodes > 1 && settings.quantized_gradients;
}

std::vector<StateTensor> saved_tensors(const ZeroSettings& settings, int num_nodes) {
  std::vector<StateTensor> tensors(settings.state_tensors.begin(), settings.state_tensors.end());
  if (settings.outer) {
    tensors.push_back(kOuterMomentum);
  } else if (num_nodes > 1 && settings.quantized_gradients) {
    tensors.push_back(kGradientFeedback);
  }
  return tensors;
}

int64_t num_live_layers(const ZeroLayout& layout, const ZeroSettings& settings) {
  const int64_t num_layers = static_cast<int64_t>(layout.groups.size()) - 2;
  const int64_t layer = largest_layer(layout);
  if (layer == 0) return 0;
  const int64_t ahead = std::max<int64_t>(1, settings.prefetch_elements / layer);
  const int64_t allowed = (settings.max_live_elements - larger_end(layout)) / layer;
  return std::min(num_layers, std::max<int64_t>(2, std::min(1 + ahead, allowed)));
}

GradientWindow gradient_window(const ZeroLayout& layout) {
  GradientWindow window;
  const int64_t kept = layout.tied_embeddings ? layout.groups.front().size() : 0;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    window.begin.push_back(g == 0 ? 0 : kept);
    window.num_elements = std::max(window.num_elements, window.begin.back() + layout.groups[g].size());
  }
  return window;
}

ZeroMemory zero_memory(const ZeroLayout& layout, const ZeroSettings& settings) {
  TESSERA_CHECK(0 <= settings.stage && settings.stage <= 3 && settings.passes_per_step > 0,
                "stage {}, {} passes", settings.stage, settings.passes_per_step);
  const int64_t weight_size = dtype_bytes(settings.weight_dtype);
  const ShardPlan plan = shard_plan(layout, settings);
  const RailShare share = rail_share(plan);
  const bool accumulates_whole = accumulates_whole_gradient(layout, settings);
  const int64_t num_owned = settings.stage == 0 ? share.num_elements : plan.largest_shard();
  const int64_t num_accumulated = accumulates_whole ? share.num_elements : plan.largest_shard();
  ZeroMemory memory;
  if (shards_weights(layout, settings)) {
    memory.weight_bytes = weight_size * plan.largest_node_share();
    memory.live_weight_bytes = weight_size * FetchOrder(layout, settings).num_elements();
  } else {
    const WeightWindow window =
        weight_window(layout, settings.weight_dtype, settings.weight_folder.has_value());
    memory.weight_bytes = weight_size * window.num_elements;
    memory.weight_file_bytes = window.file_bytes;
  }
  if (needs_layer_buffers(layout, settings)) {
    memory.layer_buffer_bytes = dtype_bytes(DType::kF32) * layout.local_world_size *
                                (kBuffersInFlight * largest_layer(layout) + larger_end(layout));
  }
  if (needs_staging(layout, settings)) {
    memory.staging_bytes = dtype_bytes(DType::kF32) * kSharesInFlight * share.largest;
  }
  if (settings.gradient_dtype == DType::kBF16) {
    memory.rounding_bytes = dtype_bytes(DType::kF32) * kRoundingElements;
  }
  if (has_gradient_feedback(layout, settings)) {
    memory.feedback_bytes = dtype_bytes(DType::kBF16) * share.num_elements;
  }
  if (!settings.optimizer_in_backward) {
    memory.accumulator_bytes = dtype_bytes(settings.gradient_dtype) * num_accumulated;
  } else if (layout.world_size() == 1) {
    memory.accumulator_bytes = dtype_bytes(DType::kF32) * gradient_window(layout).num_elements;
  } else {
    memory.accumulator_bytes = dtype_bytes(settings.gradient_dtype) * plan.largest_part();
  }
  const int64_t scratch_bytes = optimizer_state_bytes({}, num_owned, DType::kF32);  // of the gradient norm
  memory.workspace_bytes = settings.update_workspace_bytes;
  if (settings.state_folder) {
    const StateOnDisk on_disk = largest_state_on_disk(layout, settings);
    memory.optimizer_bytes = on_disk.memory_bytes + scratch_bytes;
    memory.state_ahead_bytes = on_disk.ahead_bytes;
    memory.state_file_bytes = on_disk.file_bytes;
    memory.discarded_file_bytes = on_disk.discarded_bytes;
    return memory;
  }
  memory.remainder_bytes = remainder_bytes(num_owned, settings.weight_dtype);
  memory.optimizer_bytes = largest_state_bytes(layout, settings, settings.stage == 0) + scratch_bytes;
  return memory;
}

std::vector<MemoryItem> zero_memory_items(const ZeroLayout& layout, const ZeroSettings& settings) {
  const ZeroMemory memory = zero_memory(layout, settings);
  const std::string weight_name(dtype_name(settings.weight_dtype));
  const std::string gradient_name(dtype_name(settings.gradient_dtype));
  const MemoryScope weight_scope = layout.world_size() > 1 ? MemoryScope::kNode : MemoryScope::kRank;
  const std::string gradients = settings.optimizer_in_backward
                                    ? layout.world_size() > 1
                                          ? fmt::format("of the updated group ({})", gradient_name)
                                          : "of the groups in use (F32)"
                                    : fmt::format("accumulators ({})", gradient_name);
  const char* part = settings.weight_folder             ? "embedding, head, layers in use"
                     : shards_weights(layout, settings) ? "own parts"
                                                        : "complete";
  std::vector<MemoryItem> items = {
      {MemoryKind::kWeights, weight_scope, fmt::format("{} ({})", part, weight_name), memory.weight_bytes},
      {MemoryKind::kWeights, weight_scope, "gathered layers", memory.live_weight_bytes},
      {MemoryKind::kGradients, MemoryScope::kRank, gradients, memory.accumulator_bytes},
      {MemoryKind::kGradients, MemoryScope::kNode, "in flight (F32)", memory.layer_buffer_bytes},
      {MemoryKind::kGradients, MemoryScope::kRank, "sums on the network (F32)", memory.staging_bytes},
      {MemoryKind::kGradients, MemoryScope::kRank, "sums to be rounded (F32)", memory.rounding_bytes},
      {MemoryKind::kGradients, MemoryScope::kRank, "errors of quantised sums (BF16)", memory.feedback_bytes},
      {MemoryKind::kOptimizer, MemoryScope::kRank,
       settings.state_folder ? "buffers for state on disk" : names_of(settings.state_tensors),
       memory.optimizer_bytes},
      {MemoryKind::kOptimizer, MemoryScope::kRank, "master remainders (U16)", memory.remainder_bytes},
      {MemoryKind::kOptimizer, MemoryScope::kRank, "workspace of the update", memory.workspace_bytes}};
  std::erase_if(items, [](const MemoryItem& item) { return item.size_bytes == 0; });
  return items;
}

WireBytes wire_bytes_per_step(const ZeroLayout& layout, const ZeroSettings& settings, int node_rank) {
  WireBytes wire;
  if (layout.num_nodes == 1) return wire;
  const ShardPlan plan = shard_plan(layout, settings);
  const int64_t sum_size = dtype_bytes(settings.gradient_dtype);
  const int64_t num_peers = layout.num_nodes - 1;
  const int64_t num_reductions =
      accumulates_whole_gradient(layout, settings) ? 1 : passes_through_model(settings);
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const int64_t own = plan.node_part(static_cast<int64_t>(g), node_rank).size();
    const int64_t others = layout.groups[g].size() - own;
    const int64_t gathers = num_gathers(layout, settings, static_cast<int64_t>(g));
    for (int node = 0; node < layout.num_nodes; ++node) {
      const int64_t gathered = gathers * gathered_bytes(settings, plan, static_cast<int64_t>(g), node);
      const int64_t reduced = num_reductions * reduced_bytes(settings, plan, static_cast<int64_t>(g), node);
      if (node == node_rank) {
        wire.sent_gather += gathered * num_peers;
        wire.received_reduce += reduced * num_peers;
      } else {
        wire.received_gather += gathered;
        wire.sent_reduce += reduced;
      }
    }
    if (settings.stage == 0) {
      wire.sent_reduce += sum_size * own * num_peers;
      wire.received_reduce += sum_size * others;
    }
  }
  return wire;
}

std::string_view memory_scope_name(MemoryScope scope) {
  switch (scope) {
    case MemoryScope::kRank:
      return "rank";
    case MemoryScope::kNode:
      return "node";
    case MemoryScope::kFirstRank:
      return "first rank";
  }
  TESSERA_CHECK(false, "memory scope {}", static_cast<int>(scope));
  return "";
}

std::string_view memory_use_name(MemoryUse use) { return use == MemoryUse::kStep ? "step" : "saving"; }

std::string_view memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kWeights:
      return "weights";
    case MemoryKind::kGradients:
      return "gradients";
    case MemoryKind::kOptimizer:
      return "optimizer";
    case MemoryKind::kActivations:
      return "activations";
    case MemoryKind::kBuffers:
      return "buffers";
    case MemoryKind::kProgram:
      return "program";
  }
  TESSERA_CHECK(false, "memory kind {}", static_cast<int>(kind));
  return "";
}

}  // namespace tessera
