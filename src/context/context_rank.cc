#include "context/context_rank.h"

#include "base/divide_up.h"
#include "context/slice_batch.h"

namespace tessera {

void ContextRank::open(Communicator& comm, const AttentionShape& heads, DType dtype, int64_t max_tokens,
                       ThreadPool& pool) {
  all_to_all_.emplace(comm, team_, ContextOps::all_to_all_bytes(heads, team_.size, max_tokens, dtype), pool);
  ops_.connect(*all_to_all_);
}

const PackedBatch& ContextRank::take_slice(const PackedBatch& rows) {
  slice_batch(rows, team_.size, team_.index, &slice_, &cu_seqlens_);
  ops_.set_sequences(cu_seqlens_);
  num_tokens_of_rows_ = divide_up(rows.num_tokens() - team_.index, team_.size);
  return slice_;
}

}  // namespace tessera
