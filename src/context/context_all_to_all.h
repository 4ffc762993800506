// The all-to-all of matrices among the ranks of a team: rows of some tokens with all columns against all
// tokens with some columns, and back. Within a node through memory that its ranks share, between nodes over a
// network group of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "comm/communicator.h"
#include "comm/ranks/part.h"
#include "context/context_team.h"
#include "platform/thread_pool.h"
#include "tensor/dtype.h"

namespace tessera {

// A part of every row. Its shares are of the same size, in the order of members; `readers` consecutive
// members have the same one.
struct RowSection {
  int64_t width = 0;  // bytes
  int64_t readers = 1;

  int64_t share(int64_t team_size) const { return width * readers / team_size; }
};

class ContextAllToAll {
 public:
  // Memory of a rank, which its node shares, for all-to-alls of up to `max_bytes` of a rank.
  static int64_t buffer_bytes(int64_t team_size, int local_world_size, int64_t max_bytes);

  // Payload that a rank sends to other nodes in an all-to-all of `row_bytes` for each of its tokens and each
  // member.
  static int64_t sent_bytes(int64_t team_size, int local_world_size, int64_t row_bytes, int64_t num_tokens);

  // Collective over the job. Arguments passed by reference must outlive this.
  ContextAllToAll(Communicator& comm, const ContextTeam& team, int64_t max_bytes, ThreadPool& pool);
  ~ContextAllToAll();
  ContextAllToAll(const ContextAllToAll&) = delete;
  ContextAllToAll& operator=(const ContextAllToAll&) = delete;

  // Collective over the team, with the same sizes. `own` has a row for each of num_tokens tokens of this
  // rank, `shared` one for each token of all members, token t of member m at t size + m, with this rank's
  // share of every section. Sections with several readers are summed on return in float32 in the order of
  // members and rounded once; values are float32 or BF16.
  void to_shares(std::span<const RowSection> sections, int64_t num_tokens, const std::byte* own,
                 std::byte* shared, const OpLabel& label);
  void to_tokens(std::span<const RowSection> sections, DType dtype, int64_t num_tokens,
                 const std::byte* shared, std::byte* own, const OpLabel& label);

  // This rank's index in its team.
  int64_t index() const { return team_.index; }

  // This rank would rather compute nothing more. From the next all-to-all on all members know, and abandon
  // the pass at the same place.
  void wish_to_abandon() { wishes_to_abandon_ = true; }
  bool is_abandoned() const { return is_abandoned_; }

  // Traffic between nodes since the last call.
  NetworkCounters take_network();

 private:
  // Fills, or takes, a block of num_tokens rows: what one member sends another.
  using Pack = FunctionRef<void(int64_t member, int64_t token, std::byte* row)>;
  using Unpack = FunctionRef<void(int64_t member, int64_t token, const std::byte* row)>;

  // Calls `complete` when all blocks have arrived, which stay until it returns.
  void run(int64_t row_bytes, int64_t num_tokens, Pack pack, Unpack unpack, FunctionRef<void()> complete,
           const OpLabel& label);
  void pack_all(int64_t row_bytes, int64_t num_tokens, Pack pack);
  void unpack_from(int64_t member, int64_t row_bytes, int64_t num_tokens, Unpack unpack);
  void add_up(std::span<const RowSection> sections, DType dtype, int64_t num_tokens, std::byte* own);
  // The block that has arrived from a member for this rank.
  const std::byte* block_of(int64_t member) const;
  // A node member's outgoing blocks, ordered by recipient, and the blocks its rail has received, ordered by
  // sending node and then by recipient on this node.
  std::byte* outbox(int local) const;
  std::byte* inbox(int local) const { return outbox(local) + box_bytes_; }
  int local_rank_of(int local) const { return team_.first_local_rank + local; }

  ThreadPool& pool_;
  const ContextTeam team_;
  NetworkGroup* rail_ = nullptr;  // with several nodes
  int64_t box_bytes_;             // of an outbox
  PageBuffer memory_;             // an outbox and, with several nodes, an inbox for every rank of the node
  SharedCounters counters_;
  NetworkCounters counted_;
  uint64_t number_ = 0;      // of the last all-to-all
  int64_t block_bytes_ = 0;  // in it
  std::vector<Part> parts_;  // of an outbox, by node
  bool wishes_to_abandon_ = false;
  bool is_abandoned_ = false;
};

}  // namespace tessera
