#include "shard/layout/owned_pieces.h"

#include <algorithm>

namespace tessera {

Part intersection(const Part& a, const Part& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

OwnedPieces::OwnedPieces(const ShardPlan& plan, int rank, bool of_rail)
    : rank_(rank), is_single_(plan.world_size() == 1) {
  const int node_rank = rank / plan.local_world_size(), local_rank = rank % plan.local_world_size();
  const auto add = [&](int64_t group, const Part& part) {
    if (part.size() > 0) pieces_.push_back({group, part, num_elements()});
  };
  for (int64_t g = 0; g < plan.num_groups(); ++g) {
    for (int node = 0; node < plan.num_nodes(); ++node) {
      if (!of_rail && node != node_rank) continue;
      add(g, plan.rail_part(g, node, local_rank));
    }
    add(g, plan.expert_part(g, rank));
  }
}

const OwnedPieces::Piece* OwnedPieces::find(int64_t group, int64_t element) const {
  for (const Piece& piece : pieces_) {
    if (piece.group == group && piece.elements.begin <= element && element < piece.elements.end)
      return &piece;
  }
  return nullptr;
}

std::vector<ElementRange> OwnedPieces::ranges() const {
  if (is_single_) return {{pieces_.front().elements.begin, pieces_.back().elements.end}};
  std::vector<ElementRange> ranges;
  for (const Piece& piece : pieces_) ranges.push_back({piece.elements.begin, piece.elements.end});
  return ranges;
}

std::vector<ElementRange> owned_ranges(const ShardPlan& plan, int rank) {
  return OwnedPieces(plan, rank, /*of_rail=*/false).ranges();
}

}  // namespace tessera
