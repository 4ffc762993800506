// Links through libfabric between all members of a group.
//
// The members first connect as they do for TCP (network_mesh.h), with proofs of the job's secret. Each then
// stores the addresses of its endpoints, one for every lane, and every two members prove the secret once
// more, over the fabric itself, before anything else is sent: the messages of network_handshake.h, with a key
// of their own.
#pragma once

#include <memory>
#include <vector>

#include "comm/network/link/lane_link.h"
#include "comm/network/link/network_mesh.h"

namespace tessera {

// Collective. options.fabric names a provider. At the deadline fail_because() names a member that did not
// answer. Error(kBadConfig): libfabric, the provider or an address of it is missing.
std::vector<std::unique_ptr<LaneLink>> connect_fabric(const Members& members, const std::string& group,
                                                      const NetworkOptions& options, Rendezvous& rendezvous,
                                                      FailureDetector& failures, Mesh mesh);

}  // namespace tessera
