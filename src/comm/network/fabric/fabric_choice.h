// Which transport a job uses between its nodes, and what libfabric offers.
#pragma once

#include <string>
#include <vector>

#include "comm/network/link/fabric_name.h"

namespace tessera {

inline constexpr const char* kEfaProvider = "efa";  // Amazon's adapters

// What was asked for, unless it is auto: then efa, or else "verbs;ofi_rxm", if this machine has such a device
// and libfabric can use it, and otherwise TCP. Loads nothing on a machine without devices. Error(kBadConfig)
// for a provider that is not a word.
Fabric choose_fabric(const Fabric& asked);

// Whether the provider touches memory only while it is called, and takes any memory. What a network card
// moves by itself goes through registered memory that no operation owns (fabric_link.h).
bool fabric_moves_in_calls_only(const std::string& provider);
// Whether its addresses are those of network interfaces, so that --interface chooses one.
bool is_fabric_addressed_by_ip(const std::string& provider);

// What libfabric offers for lanes on this machine.
struct FabricDomain {
  std::string provider;
  std::string domain;  // a device or an interface
  int64_t bits_per_s;  // of its link; 0 = unknown
};
// Error(kBadConfig) if libfabric is not installed.
std::vector<FabricDomain> list_fabrics();

}  // namespace tessera
