// The address of this machine that is published to the other ranks.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/ranks/world.h"

namespace tessera {

// One address of a network interface that is up.
struct InterfaceAddress {
  std::string interface;
  std::string address;
  bool is_v6 = false;
  bool is_loopback = false;
  bool is_link_local = false;
};

// In the order the system lists them.
std::vector<InterfaceAddress> interface_addresses();

struct LocalAddress {
  std::string address;
  bool is_guess = false;  // the store was reached over loopback: others may need another address
};

// The address others may connect to: that of `interface` (one name or a comma-separated list, of which the
// first existing one is used; "" = GLOO_SOCKET_IFNAME), otherwise `store_side`, the local address of the
// connection to the store. In a job with several nodes, loopback is replaced by another address of the
// machine if it has one. Error(kBadConfig) lists the interfaces that exist.
LocalAddress choose_local_address(const World& world, const std::string& store_side,
                                  const std::string& interface,
                                  const std::vector<InterfaceAddress>& addresses = interface_addresses());

// The addresses the store listens on when others reach it as `host`: those addresses of the host that belong
// to this machine. Empty, which means all interfaces, if there are none, if the lookup takes longer than
// `time`, or if the name resolves only to loopback here and may resolve to another address elsewhere.
std::vector<std::string> listen_addresses(
    const std::string& host, std::chrono::milliseconds time,
    const std::vector<InterfaceAddress>& addresses = interface_addresses());
// The time a node may take to look up its own name: others wait for it, or will soon.
inline constexpr std::chrono::milliseconds kOwnNameTime{5'000};

}  // namespace tessera
