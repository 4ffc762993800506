// Groups documents that share a row, for packings that keep documents whole.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// A row's documents, by their numbers, in the order in which they follow each other.
using DocumentGroup = std::vector<int64_t>;

// Best fit decreasing, as pack_dataset() of TRL 1.16 with strategy bfd: the documents from the longest to the
// shortest, equal ones in their order, each into the row with the least room that is enough (of several the
// one that has had this room for longest), or into a new row. Lengths are 1 to capacity.
std::vector<DocumentGroup> best_fit_decreasing(std::span<const int64_t> lengths, int64_t capacity);

// LLaMA-Factory's packing: row after row, each filled with the longest document that still fits, and the last
// of equally long ones.
std::vector<DocumentGroup> greedy_knapsack(std::span<const int64_t> lengths, int64_t capacity);

}  // namespace tessera
