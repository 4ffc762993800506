// Whether other machines answer.
#pragma once

#include <string>
#include <vector>

#include "cluster/check.h"

namespace tessera {

struct Peer {
  std::string host;  // name or address
  int port = 0;
};

// "host1:29500", "[fd00::1]:29500". Error(kUsage).
Peer parse_peer(const std::string& text);

// Connects over TCP to all of them at the same time, for at most `seconds`; one check "peer" for each. A peer
// that refuses answers, too: its program may not listen yet. Fails if there is no answer, or if the fastest
// of three takes longer than any network of one region does.
std::vector<Check> check_peers(const std::vector<Peer>& peers, double seconds);

}  // namespace tessera
