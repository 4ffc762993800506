#include "comm/socket/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "comm/socket/host_lookup.h"

namespace tessera {
namespace {

bool is_v6_text(const std::string& address) { return address.find(':') != std::string::npos; }

bool is_loopback_text(const std::string& address) { return address == "::1" || address.starts_with("127."); }

std::string list_interfaces(const std::vector<InterfaceAddress>& addresses) {
  std::string text;
  for (const InterfaceAddress& each : addresses) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", each.interface, each.address);
  }
  return text.empty() ? "none with an address" : text;
}

// The best address that `usable` accepts: of the wanted family, otherwise of any. Skips link-local ones,
// which need a scope and are of no use to others.
template <typename Usable>
const InterfaceAddress* find_address(const std::vector<InterfaceAddress>& addresses, bool want_v6,
                                     Usable usable) {
  for (const bool same_family : {true, false}) {
    for (const InterfaceAddress& each : addresses) {
      if (!each.is_link_local && (each.is_v6 == want_v6) == same_family && usable(each)) return &each;
    }
  }
  return nullptr;
}

std::vector<std::string> addresses_or_none(const std::string& host, std::chrono::milliseconds time) {
  try {
    return HostLookup::system().addresses_of(host, HostLookup::Clock::now() + time);
  } catch (const Error& error) {
    log_debug("the store listens on all addresses: {}", error.what());
    return {};
  }
}

}  // namespace

std::vector<std::string> listen_addresses(const std::string& host, std::chrono::milliseconds time,
                                          const std::vector<InterfaceAddress>& addresses) {
  std::vector<std::string> chosen;
  bool only_loopback = true;
  for (const std::string& address : addresses_or_none(host, time)) {
    const bool is_loopback = is_loopback_text(address);
    const bool is_here =
        address.starts_with("127.") || std::any_of(addresses.begin(), addresses.end(),
                                                   [&](const auto& each) { return each.address == address; });
    if (!is_here || std::find(chosen.begin(), chosen.end(), address) != chosen.end()) continue;
    chosen.push_back(address);
    only_loopback = only_loopback && is_loopback;
  }
  // Debian maps a machine's own name to 127.0.1.1.
  if (only_loopback && !is_numeric_address(host) && host != "localhost") return {};
  return chosen;
}

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) fail_errno(ExitCode::kIoError, errno, "cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<InterfaceAddress> addresses;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    InterfaceAddress found;
    found.interface = each->ifa_name;
    found.is_loopback = (each->ifa_flags & IFF_LOOPBACK) != 0;
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (each->ifa_addr->sa_family == AF_INET) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
      inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size());
    } else if (each->ifa_addr->sa_family == AF_INET6) {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(each->ifa_addr);
      inet_ntop(AF_INET6, &address->sin6_addr, text.data(), text.size());
      found.is_v6 = true;
      found.is_link_local = IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr);
    } else {
      continue;
    }
    found.address = text.data();
    addresses.push_back(found);
  }
  return addresses;
}

LocalAddress choose_local_address(const World& world, const std::string& store_side,
                                  const std::string& interface,
                                  const std::vector<InterfaceAddress>& addresses) {
  std::string wanted = interface;
  const char* const variable = std::getenv("GLOO_SOCKET_IFNAME");
  if (wanted.empty() && variable != nullptr) wanted = variable;
  const bool want_v6 = is_v6_text(store_side);
  if (!wanted.empty()) {
    for (size_t begin = 0; begin <= wanted.size();) {
      const size_t end = std::min(wanted.find(',', begin), wanted.size());
      const std::string name = wanted.substr(begin, end - begin);
      const auto* found = find_address(addresses, want_v6,
                                       [&](const InterfaceAddress& each) { return each.interface == name; });
      if (found != nullptr) return {.address = found->address};
      begin = end + 1;
    }
    fail(ExitCode::kBadConfig, "{} '{}': no such interface with an address on host {}; there are: {}",
         interface.empty() ? "GLOO_SOCKET_IFNAME" : "--interface", wanted, world.host,
         list_interfaces(addresses));
  }
  if (world.num_nodes == 1 || !is_loopback_text(store_side)) return {.address = store_side};
  const auto* found =
      find_address(addresses, want_v6, [](const InterfaceAddress& each) { return !each.is_loopback; });
  // Without another interface, all nodes of the job are on this machine.
  return {.address = found == nullptr ? store_side : found->address, .is_guess = true};
}

}  // namespace tessera
