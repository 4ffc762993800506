// Chooses the transport between the nodes of a job, and lists what libfabric offers.
#pragma once

#include <string>
#include <vector>

#include "comm/network/link/fabric_name.h"

namespace tessera {

inline constexpr const char* kEfaProvider = "efa";  // Amazon's adapters

// The fabric that was asked for, unless it is auto: then efa, or else "verbs;ofi_rxm", if this machine has
// such a device and libfabric can use it, and otherwise TCP. Loads nothing on a machine without devices.
// Error(kBadConfig) for a provider that is not a word.
Fabric choose_fabric(const Fabric& asked);

// Whether the provider accesses memory only during calls, and accepts any memory. A network card that moves
// data on its own uses registered memory that no operation owns (fabric_link.h).
bool fabric_moves_in_calls_only(const std::string& provider);
// Whether its addresses are those of network interfaces, so that --interface chooses one.
bool is_fabric_addressed_by_ip(const std::string& provider);

// A libfabric domain that can carry lanes on this machine.
struct FabricDomain {
  std::string provider;
  std::string domain;  // a device or an interface
  int64_t bits_per_s;  // of its link; 0 = unknown
};
// Error(kBadConfig) if libfabric is not installed.
std::vector<FabricDomain> list_fabrics();

}  // namespace tessera
