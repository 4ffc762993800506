// Connections between all members of a group, several per pair.
//
// Every member listens on a port of its own and publishes it; of each pair the one with the higher index
// connects. A connection proves that it belongs to the group before it counts for anything: the listening
// side sends a challenge, the other answers with who it is and an HMAC over both, and gets one back. Its key
// follows from the job's secret, which never travels, and a random number in the store. Whoever cannot is
// dropped, and a recorded answer fits no other challenge.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/failure.h"
#include "comm/rendezvous.h"
#include "comm/tcp_socket.h"

namespace tessera {

// The members of a group as ranks of the job.
struct Members {
  std::vector<int> ranks;
  std::vector<std::string> names;  // "rank 3 on host b"
  int index = 0;                   // this one

  int size() const { return static_cast<int>(ranks.size()); }
};

struct MeshOptions {
  std::string name;  // of the group
  int connections = 4;
  std::chrono::milliseconds timeout{60'000};
};

// sockets[connection][member]; this member's own are not open.
using Mesh = std::vector<std::vector<UniqueFd>>;

// Collective. At the deadline fail_because() names a member that is missing; a member with another wire
// version or number of connections is Error(kBadConfig) that names both.
Mesh connect_mesh(const Members& members, const MeshOptions& options, Rendezvous& rendezvous,
                  FailureDetector& failures);

}  // namespace tessera
