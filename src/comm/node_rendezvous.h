// How the ranks of a node find each other and hand each other memory; behind node_group.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "comm/node_state.h"

namespace tessera {

// Fills state.peers and state.control. Rank 0 of the node listens, the others connect; rank 0 then gives
// every two of them a connection, over which nothing is ever sent: its end tells that a process has ended.
void open_node(NodeState& state);

// Rank 0 makes the memory and gives it to every other rank, which take it.
SharedSegment give_segment(NodeState& state, std::string_view name, int64_t size_bytes);
SharedSegment take_segment(NodeState& state, std::string_view name, int64_t size_bytes);

}  // namespace tessera
