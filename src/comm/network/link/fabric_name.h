// What carries the messages of a job between its nodes: --fabric auto|tcp|PROVIDER.
#pragma once

#include <string>

namespace tessera {

struct Fabric {
  enum class Kind {
    kTcp,   // Tessera's own connections
    kAuto,  // what the machine has (fabric/fabric_choice.h)
    kProvider,
  };
  Kind kind = Kind::kTcp;
  // With kProvider: as libfabric names it, such as "efa" or "tcp;ofi_rxm". A text, since libraries that it
  // loads add others.
  std::string provider = {};

  bool is_tcp() const { return kind == Kind::kTcp; }
  bool operator==(const Fabric&) const = default;
};

Fabric parse_fabric(const std::string& name);
// As parse_fabric() takes it.
std::string fabric_name(const Fabric& fabric);

}  // namespace tessera
