#include "comm/network/fabric/fabric_choice.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/network/fabric/fabric_library.h"

namespace tessera {
namespace {

constexpr const char* kDeviceFolder = "/sys/class/infiniband";

bool has_fabric_device() {
  std::error_code error;
  const std::filesystem::directory_iterator entries(kDeviceFolder, error);
  return !error && entries != std::filesystem::directory_iterator();
}

bool is_one_of(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

Fabric choose_fabric(const Fabric& asked) {
  const std::string& name = asked.provider;
  const bool is_word =
      !name.empty() && std::ranges::none_of(name, [](char c) { return c <= ' ' || c > '~'; });
  if (asked.kind == Fabric::Kind::kProvider && !is_word) {
    fail(ExitCode::kBadConfig, "--fabric: expected auto, tcp or a provider of libfabric, found '{}'",
         printable(name));
  }
  if (asked.kind != Fabric::Kind::kAuto) return asked;
  if (!has_fabric_device()) return {};
  if (!FabricLibrary::is_installed()) {
    log_warning(
        "{} lists devices, but libfabric is not installed: the network between nodes is TCP. Debian's "
        "package "
        "is libfabric1; --fabric tcp silences this",
        kDeviceFolder);
    return {};
  }
  for (const char* provider : {kEfaProvider, "verbs;ofi_rxm"}) {
    if (find_fabrics(provider, "")) return {Fabric::Kind::kProvider, provider};
  }
  log_warning("{} lists devices, but neither efa nor verbs can use one: the network between nodes is TCP",
              kDeviceFolder);
  return {};
}

bool fabric_moves_in_calls_only(const std::string& provider) {
  return is_one_of(provider, {"tcp;ofi_rxm", "udp;ofi_rxd", "shm"});
}

bool is_fabric_addressed_by_ip(const std::string& provider) {
  return is_one_of(provider, {"tcp;ofi_rxm", "udp;ofi_rxd", "sockets"});
}

std::vector<FabricDomain> list_fabrics() {
  std::vector<FabricDomain> domains;
  const FabricInfo found = find_fabrics("", "");
  for (const fi_info* info = found.get(); info != nullptr; info = info->next) {
    const bool has_link = info->nic != nullptr && info->nic->link_attr != nullptr;
    FabricDomain domain = {info->fabric_attr->prov_name, info->domain_attr->name,
                           has_link ? static_cast<int64_t>(info->nic->link_attr->speed) : 0};
    const bool is_known = std::ranges::any_of(domains, [&](const FabricDomain& other) {
      return other.provider == domain.provider && other.domain == domain.domain;
    });
    if (!is_known) domains.push_back(std::move(domain));
  }
  return domains;
}

}  // namespace tessera
