// What goes wrong on a network, for hosts of hosts.h: a proxy that changes bytes on their way, and a stranger
// who knocks at every port.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

enum class Damage { kFlippedBit, kMissingBytes, kDoubledBytes };

struct DamagingProxy {
  int port = 0;              // where connections are redirected to (REDIRECT of iptables)
  int mark = 0;              // of the proxy's own connections, which must not be
  uint64_t seed = 1;         // decides where
  int64_t intact_bytes = 0;  // of all connections together, before the damage
  Damage damage = Damage::kFlippedBit;
};

// Takes connections and forwards both directions to where they were meant to go, damaging one place; for
// ever. The process ends itself with code 3 when it cannot.
void run_damaging_proxy(const DamagingProxy& options);

// Until killed: connects to every TCP port of this network namespace that listens on `address`'s host, says
// nothing or something random, and goes, orderly or not.
void scan_ports(const std::string& address, uint64_t seed);

}  // namespace tessera
