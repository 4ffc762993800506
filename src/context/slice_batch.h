// The tokens of a pass that belong to one member of a team.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/packed_batch.h"

namespace tessera {

// Tokens of each member in a pass of num_tokens.
int64_t tokens_of_member(int64_t num_tokens, int64_t size);

// Fills *slice with every size-th token of `whole` from the one with number `index` on, and *cu_seqlens with
// the bounds of all members' sequences together. So that all members have equally many tokens, up to size - 1
// are added as a sequence of their own, without targets: their gradients are zero.
void slice_batch(const PackedBatch& whole, int64_t size, int64_t index, PackedBatch* slice,
                 std::vector<int32_t>* cu_seqlens);

}  // namespace tessera
