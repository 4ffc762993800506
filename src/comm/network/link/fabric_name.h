// The transport between the nodes of a job: --fabric auto|tcp|PROVIDER.
#pragma once

#include <string>

namespace tessera {

struct Fabric {
  enum class Kind {
    kTcp,   // Tessera's own connections
    kAuto,  // chosen by the machine's devices (fabric/fabric_choice.h)
    kProvider,
  };
  Kind kind = Kind::kTcp;
  // For kProvider: libfabric's name of it, such as "efa" or "tcp;ofi_rxm". It is text because libraries that
  // libfabric loads add more.
  std::string provider = {};

  bool is_tcp() const { return kind == Kind::kTcp; }
  bool operator==(const Fabric&) const = default;
};

Fabric parse_fabric(const std::string& name);
// The text that parse_fabric() takes.
std::string fabric_name(const Fabric& fabric);

}  // namespace tessera
