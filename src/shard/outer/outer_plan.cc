#include "shard/outer/outer_plan.h"

#include <algorithm>

#include "base/error.h"

namespace tessera {
namespace {

ZeroLayout on_one_node(ZeroLayout layout) {
  layout.num_nodes = 1;
  return layout;
}

// The pieces of what a local rank keeps, noted down by fragment.
std::vector<Part> cut_pieces(const ZeroLayout& layout, const ZeroSettings& settings, int local_rank,
                             int64_t piece_elements, std::vector<std::vector<int64_t>>* fragments) {
  const ShardPlan node = shard_plan(on_one_node(layout), settings);
  std::vector<Part> pieces;
  for (int64_t group = 0; group < node.num_groups(); ++group) {
    const Part kept = node.part(group, local_rank);
    for (int64_t begin = kept.begin; begin < kept.end; begin += piece_elements) {
      (*fragments)[static_cast<size_t>(group) % fragments->size()].push_back(std::ssize(pieces));
      pieces.push_back({begin, std::min(begin + piece_elements, kept.end)});
    }
  }
  return pieces;
}

}  // namespace

OuterPlan::OuterPlan(const ZeroLayout& layout, const ZeroSettings& settings, int local_rank,
                     int64_t piece_elements)
    : settings_(settings.outer.value()),
      fragments_(static_cast<size_t>(settings_.num_fragments)),
      cuts_(cut_pieces(layout, settings, local_rank, piece_elements, &fragments_), layout.alignment,
            layout.num_nodes, 1) {
  TESSERA_CHECK(settings_.sync_every > 0 && settings_.num_fragments <= settings_.sync_every &&
                    settings_.sync_delay * settings_.num_fragments < settings_.sync_every,
                "{} fragments every {} updates with a delay of {}", settings_.num_fragments,
                settings_.sync_every, settings_.sync_delay);
  TESSERA_CHECK(is_elementwise(settings.state_tensors) && piece_elements % layout.alignment == 0,
                "pieces of {} elements", piece_elements);
  plan_buffers();
}

// A fragment's first exchange may come after fewer updates, so that all exchanges are evenly spaced.
bool OuterPlan::begins(int64_t fragment, int64_t num_updates) const {
  const int64_t offset = fragment * settings_.sync_every / settings_.num_fragments;
  return num_updates > 0 && num_updates >= offset && (num_updates - offset) % settings_.sync_every == 0;
}

void OuterPlan::plan_buffers() {
  buffer_begin_.resize(static_cast<size_t>(num_pieces()));
  const int64_t largest = cuts_.largest_group();
  for (const std::vector<int64_t>& pieces : fragments_) {
    int64_t begin = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (settings_.sync_delay == 0) begin = static_cast<int64_t>(i % 2) * largest;
      buffer_begin_[static_cast<size_t>(pieces[i])] = begin;
      begin += piece(pieces[i]).size();
      num_buffered_ = std::max(num_buffered_, begin);
    }
  }
}

// Parts of equal size are cut from the front: the first rank has the most.
OuterMemory outer_memory(const ZeroLayout& layout, const ZeroSettings& settings) {
  const OuterPlan plan(layout, settings, 0);
  const int64_t on_wire = dtype_bytes(settings.network_dtype);
  OuterMemory memory;
  memory.weight_bytes = dtype_bytes(DType::kF32) * plan.num_kept();
  memory.momentum_bytes = dtype_bytes(DType::kF32) * plan.num_owned(0);
  memory.buffer_bytes = (dtype_bytes(DType::kF32) + on_wire) * plan.num_buffered();
  if (settings.quantized_gradients) memory.feedback_bytes = dtype_bytes(DType::kBF16) * plan.num_kept();
  return memory;
}

std::vector<MemoryItem> outer_memory_items(const ZeroLayout& layout, const ZeroSettings& settings) {
  const OuterMemory memory = outer_memory(layout, settings);
  std::vector<MemoryItem> items = {
      {MemoryKind::kOptimizer, MemoryScope::kRank, "outer weights (F32)", memory.weight_bytes},
      {MemoryKind::kOptimizer, MemoryScope::kRank, "outer momentum (F32)", memory.momentum_bytes},
      {MemoryKind::kOptimizer, MemoryScope::kRank, "errors of quantising (BF16)", memory.feedback_bytes},
      {MemoryKind::kBuffers, MemoryScope::kRank, "exchange of weights", memory.buffer_bytes}};
  std::erase_if(items, [](const MemoryItem& item) { return item.size_bytes == 0; });
  return items;
}

WireBytes outer_wire_bytes(const ZeroLayout& layout, const ZeroSettings& settings, int node_rank) {
  WireBytes wire;
  const int64_t value_bytes = dtype_bytes(settings.network_dtype);
  for (int local_rank = 0; local_rank < layout.local_world_size; ++local_rank) {
    const OuterPlan plan(layout, settings, local_rank);
    for (int64_t piece = 0; piece < plan.num_pieces(); ++piece) {
      for (int node = 0; node < layout.num_nodes; ++node) {
        const int64_t count = plan.owned(piece, node).size();
        const int64_t gathered = count * value_bytes;
        const int64_t reduced = settings.quantized_gradients
                                    ? gradient_blocks_bytes(*settings.quantized_gradients, count)
                                    : gathered;
        if (node == node_rank) {
          wire.sent_gather += gathered * (layout.num_nodes - 1);
          wire.received_reduce += reduced * (layout.num_nodes - 1);
        } else {
          wire.received_gather += gathered;
          wire.sent_reduce += reduced;
        }
      }
    }
  }
  return wire;
}

WireBytes mean_wire_bytes(const ZeroLayout& layout, const ZeroSettings& settings, int node_rank) {
  if (!settings.outer) return wire_bytes_per_step(layout, settings, node_rank);
  WireBytes wire = outer_wire_bytes(layout, settings, node_rank);
  for (int64_t* bytes : {&wire.sent_gather, &wire.received_gather, &wire.sent_reduce, &wire.received_reduce})
    *bytes /= settings.outer->sync_every;
  return wire;
}

}  // namespace tessera
