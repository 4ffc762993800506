// Which transport a job uses between its nodes: --fabric auto|tcp|PROVIDER.
#pragma once

#include <string>
#include <vector>

namespace tessera {

inline constexpr const char* kTcpFabric = "tcp";  // Tessera's own connections
inline constexpr const char* kAutoFabric = "auto";
inline constexpr const char* kEfaFabric = "efa";  // Amazon's adapters

// `asked` is auto, tcp, or a provider as libfabric names it, such as efa or "tcp;ofi_rxm"; returned as it is
// unless it is auto: then efa, or else "verbs;ofi_rxm", if this machine has such a device and libfabric can
// use it, and otherwise tcp. Loads nothing on a machine without devices.
std::string choose_fabric(const std::string& asked);

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
