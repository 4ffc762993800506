// Network faults for the hosts of hosts.h: a proxy that corrupts bytes in transit, and an outsider that
// probes every port.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

enum class Damage { kFlippedBit, kMissingBytes, kDoubledBytes };

struct DamagingProxy {
  int port = 0;              // where iptables REDIRECT sends connections
  int mark = 0;              // of the proxy's own connections, which must not be redirected
  uint64_t seed = 1;         // decides where to corrupt
  int64_t intact_bytes = 0;  // over all connections, before the corruption
  Damage damage = Damage::kFlippedBit;
};

// Accepts connections forever and forwards both directions to their original destination, corrupting one
// place. If that is impossible, exits the process with code 3.
void run_damaging_proxy(const DamagingProxy& options);

// Until killed, connects to every open TCP port on the host at `address`, sends nothing or something random,
// and disconnects, cleanly or not.
void scan_ports(const std::string& address, uint64_t seed);

}  // namespace tessera
