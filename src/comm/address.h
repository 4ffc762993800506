// Which of this machine's addresses others are told.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/world.h"

namespace tessera {

// One address of a network interface that is up.
struct InterfaceAddress {
  std::string interface;
  std::string address;
  bool is_v6 = false;
  bool is_loopback = false;
  bool is_link_local = false;
};

// In the order of the system.
std::vector<InterfaceAddress> interface_addresses();

struct LocalAddress {
  std::string address;
  bool is_guess = false;  // the store was reached over loopback, which says nothing of how others come here
};

// The address others may connect to: that of `interface` (a name, or several with commas, the first that
// exists; "" = as GLOO_SOCKET_IFNAME in the environment says), or else `store_side`, the local address of the
// connection to the store. Loopback when the job has several nodes is replaced by another address of the
// machine, if it has one. Error(kBadConfig) names the interfaces that exist.
LocalAddress choose_local_address(const World& world, const std::string& store_side,
                                  const std::string& interface,
                                  const std::vector<InterfaceAddress>& addresses = interface_addresses());

// What the store listens on, when the others reach it as `host`: the addresses of this machine among those of
// the host, or nothing, which means all, when there is none, or none known within `time`, or only loopback
// under a name that may stand for another address elsewhere.
std::vector<std::string> listen_addresses(
    const std::string& host, std::chrono::milliseconds time,
    const std::vector<InterfaceAddress>& addresses = interface_addresses());
// That a node may take to find its own name: others wait for it, or soon will.
inline constexpr std::chrono::milliseconds kOwnNameTime{5'000};

}  // namespace tessera
