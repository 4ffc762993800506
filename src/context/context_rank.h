// A rank's part in context parallelism (context_team.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "context/context_all_to_all.h"
#include "context/context_ops.h"
#include "context/context_team.h"
#include "tensor/packed_batch.h"

namespace tessera {

class ContextRank {
 public:
  // `ops` must outlive this.
  ContextRank(Ops& ops, const ContextTeam& team) : team_(team), ops_(ops, team.size) {}

  const ContextTeam& team() const { return team_; }
  // The model's.
  ContextOps& ops() { return ops_; }

  // Collective over the job, before the first pass: allows passes of up to max_tokens tokens of this rank
  // through layers with these heads.
  void open(Communicator& comm, const AttentionShape& heads, DType dtype, int64_t max_tokens,
            ThreadPool& pool);
  ContextAllToAll& all_to_all() { return *all_to_all_; }

  // This rank's slice of the next pass, which is of these rows on all members of the team. Valid until the
  // next call.
  const PackedBatch& take_slice(const PackedBatch& rows);
  // Position of the slice's token `token` in the rows, and the number of its tokens that are in the rows.
  int64_t token_of_rows(int64_t token) const { return token * team_.size + team_.index; }
  int64_t num_tokens_of_rows() const { return num_tokens_of_rows_; }

 private:
  ContextTeam team_;
  ContextOps ops_;
  std::optional<ContextAllToAll> all_to_all_;
  PackedBatch slice_;
  std::vector<int32_t> cu_seqlens_;
  int64_t num_tokens_of_rows_ = 0;
};

// The team size for a rank that may have its rows to itself: `context` is null then.
inline int64_t size_of_team(const ContextRank* context) {
  return context == nullptr ? 1 : context->team().size;
}
inline const PackedBatch& take_slice(ContextRank* context, const PackedBatch& rows) {
  return context == nullptr ? rows : context->take_slice(rows);
}
// Tokens of the slice that was taken last.
inline int64_t num_tokens_of_rows(const ContextRank* context, const PackedBatch& rows) {
  return context == nullptr ? rows.num_tokens() : context->num_tokens_of_rows();
}

}  // namespace tessera
