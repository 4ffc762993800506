#include "comm/network/link/fabric_name.h"

namespace tessera {

Fabric parse_fabric(const std::string& name) {
  if (name == "tcp") return {};
  if (name == "auto") return {Fabric::Kind::kAuto, ""};
  return {Fabric::Kind::kProvider, name};
}

std::string fabric_name(const Fabric& fabric) {
  switch (fabric.kind) {
    case Fabric::Kind::kTcp:
      return "tcp";
    case Fabric::Kind::kAuto:
      return "auto";
    case Fabric::Kind::kProvider:
      break;
  }
  return fabric.provider;
}

}  // namespace tessera
