// The rendezvous of a node's ranks and their shared memory; implementation of node_group.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "comm/node/node_state.h"

namespace tessera {

// Fills state.peers and state.control. Rank 0 of the node listens, the others connect; rank 0 then gives
// every pair of them a connection over which nothing is ever sent: it closes when a process ends.
void open_node(NodeState& state);

// Rank 0 creates the memory and passes it to the other ranks, which receive it.
PageBuffer give_segment(NodeState& state, std::string_view name, int64_t size_bytes);
PageBuffer take_segment(NodeState& state, std::string_view name, int64_t size_bytes);

}  // namespace tessera
