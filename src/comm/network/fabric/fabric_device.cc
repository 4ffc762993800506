#include "comm/network/fabric/fabric_device.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <system_error>

#include "base/text.h"

namespace tessera {
namespace {

constexpr int kCapIpcLock = 14;  // capabilities(7)

bool has_capability(int number) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("CapEff:")) {
      return (std::strtoull(line.c_str() + sizeof("CapEff:") - 1, nullptr, 16) >> number & 1) != 0;
    }
  }
  return false;
}

bool has_entries(const std::filesystem::path& folder, const std::string& prefix) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with(prefix)) return true;
  }
  return false;
}

}  // namespace

FabricMachine this_fabric_machine() {
  FabricMachine machine;
  rlimit limit{};
  const bool is_limited = ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  machine.lockable_bytes =
      is_limited && !has_capability(kCapIpcLock) ? static_cast<int64_t>(limit.rlim_cur) : -1;
  return machine;
}

std::string fabric_device_problem(const std::string& provider, int64_t registered_bytes,
                                  const FabricMachine& machine) {
  const bool is_efa = provider.starts_with("efa");
  if (!is_efa && !provider.starts_with("verbs")) return {};
  if (!has_entries(machine.root / "sys/class/infiniband", "")) {
    return fmt::format(
        "--fabric {}: this machine has no such device (/sys/class/infiniband is empty){}", provider,
        is_efa ? ": choose an instance type with EFA and attach an EFA interface, or use --fabric tcp"
               : ": load the driver of the card, or use --fabric tcp");
  }
  if (!has_entries(machine.root / "dev/infiniband", "uverbs")) {
    return fmt::format(
        "--fabric {}: the machine has a device, but this process cannot see it (no /dev/infiniband/uverbs*): "
        "in "
        "Kubernetes request {}",
        provider,
        is_efa ? "the resource vpc.amazonaws.com/efa, which the EFA device plugin offers"
               : "the resource of the device plugin of its vendor");
  }
  if (machine.lockable_bytes >= 0 && machine.lockable_bytes < registered_bytes) {
    return fmt::format(
        "--fabric {} registers {}, but this process may lock {}: raise 'ulimit -l' (memlock in "
        "/etc/security/limits.conf, LimitMEMLOCK of systemd), or give the container the capability IPC_LOCK",
        provider, format_bytes(registered_bytes), format_bytes(machine.lockable_bytes));
  }
  return {};
}

}  // namespace tessera
