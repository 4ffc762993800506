// libfabric, loaded on first use: jobs over TCP run where it is not installed, and its providers' libraries
// do more when they are loaded than a process that needs none of them should put up with.
#pragma once

#include <rdma/fabric.h>

#include <memory>
#include <string>

// A macro of its header with the name of a function of base/text.h.
#undef count_of

namespace tessera {

// The functions that are not inline in its headers.
struct FabricLibrary {
  decltype(&::fi_getinfo) getinfo;
  decltype(&::fi_freeinfo) freeinfo;
  decltype(&::fi_dupinfo) dupinfo;
  decltype(&::fi_fabric) fabric;
  decltype(&::fi_strerror) strerror;
  decltype(&::fi_version) version;

  // Thread-safe. Error(kBadConfig) names the package if it is not installed. Before loading, sets environment
  // variables that the user has not set (kVariables in the source). Signal handlers that a library installs
  // while loading are removed again.
  static const FabricLibrary& get();
  // Whether it is, or can be, loaded.
  static bool is_installed();
};

// The version whose behaviour this program was written for; the library may be newer.
inline constexpr uint32_t kFabricVersion = FI_VERSION(1, 14);

struct FreeFabricInfo {
  void operator()(fi_info* info) const { FabricLibrary::get().freeinfo(info); }
};
using FabricInfo = std::unique_ptr<fi_info, FreeFabricInfo>;  // a list

// Fabrics that can carry a lane (reliable datagrams with tags) through `provider`, "" = any: a list, best
// first; nullptr = none. `local_address`: numeric, for providers that are addressed by IP; "" = any.
FabricInfo find_fabrics(const std::string& provider, const std::string& local_address);

// "Connection refused (111)"; `error` as libfabric returns it, of either sign.
std::string fabric_error(int64_t error);

}  // namespace tessera
