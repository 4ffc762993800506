// Connections between all members of a group, several per pair.
//
// Every member listens on a port of its own and publishes it; in each pair the member with the higher index
// connects. A connection must prove that it belongs to the group before it is used: the listening side sends
// a challenge, the other answers with its identity and an HMAC over both, and gets an HMAC back. The key is
// derived from the job's secret, which is never sent, and a random number in the store. A peer that fails
// this is dropped, and a recorded answer fits no other challenge.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/network/link/fabric_name.h"
#include "comm/ranks/failure.h"
#include "comm/ranks/proof.h"
#include "comm/ranks/rank_position.h"
#include "comm/ranks/rendezvous.h"
#include "comm/socket/tcp_socket.h"

namespace tessera {

// The members of a group as ranks of the job.
struct Members {
  std::vector<int> ranks;
  std::vector<std::string> names;  // "rank 3 on host b"
  int index = 0;                   // of this member

  int size() const { return static_cast<int>(ranks.size()); }
};

struct NetworkOptions {
  std::chrono::milliseconds timeout{60'000};  // per operation, from when its turn comes
  int connections = 4;                        // per pair of members
  RankPosition* position = nullptr;           // records every operation; must outlive the group
  Fabric fabric = {};
};

struct Mesh {
  // [connection][member]; the entries of this member itself are not open.
  std::vector<std::vector<UniqueFd>> sockets;
  Mac key{};  // known to the members only, if the job has a secret
};

// The value that a member of the group stores for the others as `what`: "network/rail 0/3".
std::string group_key(const std::string& group, const std::string& what);

// Collective. At the deadline fail_because() names a missing member; a member with another wire version,
// number of connections or fabric is an Error(kBadConfig) that names both.
// options.fabric is the transport that will be used, not auto.
Mesh connect_mesh(const Members& members, const std::string& group, const NetworkOptions& options,
                  Rendezvous& rendezvous, FailureDetector& failures);

}  // namespace tessera
