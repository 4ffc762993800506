// Checks a network card's requirements of the machine and the container before a provider is asked: the
// provider's errors name neither the reason nor the fix.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera {

struct FabricMachine {
  std::filesystem::path root = "/";  // of /sys and /dev
  int64_t lockable_bytes = 0;        // RLIMIT_MEMLOCK; -1 = without limit, or the process has CAP_IPC_LOCK
};
FabricMachine this_fabric_machine();

// One line that says why `provider` cannot work with so much registered memory, and what to do; "" = nothing
// speaks against it, or it needs no device.
std::string fabric_device_problem(const std::string& provider, int64_t registered_bytes,
                                  const FabricMachine& machine);

}  // namespace tessera
