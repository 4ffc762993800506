// Context parallelism: the ranks of a team share the rows of every pass, for rows whose activations do not
// fit one rank. Token t of a pass belongs to member t mod size, which computes everything but attention for
// it; attention is divided by heads: each member has the same number of them for all tokens (context_ops.h).
// A team may have more members than the model has key-value heads: several then have the same one, with
// different query heads. So every member has the same work whatever the rows look like, and attention is
// computed head by head exactly as on one rank. Jacobs et al., "DeepSpeed Ulysses", 2023; interleaved tokens
// as in Brandon et al., "Striped attention", 2023.
#pragma once

#include <cstdint>
#include <string>

#include "comm/ranks/world.h"
#include "kernels/attention/attention_shape.h"

namespace tessera {

// `size` consecutive ranks of a job: a part of a node's, or all ranks of consecutive nodes.
struct ContextTeam {
  int size = 1;
  int index = 0;       // of this rank in its team
  int first_node = 0;  // of the job, that the team is on
  int num_nodes = 1;
  int first_local_rank = 0;
  int local_size = 1;  // members on each of its nodes

  int node() const { return index / local_size; }
  int local() const { return index % local_size; }
};

// Why ranks laid out so cannot form teams of `size`; "" if they can.
std::string context_team_refusal(int num_nodes, int local_world_size, int64_t size);
// Why a model with these heads cannot be shared out among `size` ranks; "" if it can.
std::string context_heads_refusal(const AttentionShape& shape, int64_t size);

// Error(kBadConfig) with context_team_refusal().
ContextTeam context_team(const World& world, int64_t size);

// The heads that each of `size` members has.
AttentionShape heads_of_member(const AttentionShape& shape, int64_t size);

// Consecutive members that have the same key-value head.
int64_t readers_of_key_value_head(const AttentionShape& shape, int64_t size);

}  // namespace tessera
