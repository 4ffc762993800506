#include "bench/comm/network_pair.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "bench/shell.h"

namespace tessera {
NetworkPair::NetworkPair() {
  if (::geteuid() != 0) {
    fail(ExitCode::kBadConfig,
         "network namespaces need root: run this as root, or in a container with CAP_NET_ADMIN "
         "and CAP_SYS_ADMIN");
  }
  for (size_t side = 0; side < 2; ++side) names_[side] = fmt::format("tessera-{}-{}", ::getpid(), side);
  try {
    for (const std::string& name : names_) run_shell("ip netns add " + name);
    run_shell(
        fmt::format("ip link add veth0 netns {} type veth peer name veth0 netns {}", names_[0], names_[1]));
    for (size_t side = 0; side < 2; ++side) {
      const std::string ip = fmt::format("ip -n {}", names_[side]);
      run_shell(fmt::format("{0} addr add {1}/24 dev veth0 && {0} link set lo up && {0} link set veth0 up",
                            ip, addresses_[side]));
    }
  } catch (const Error& error) {
    for (const std::string& name : names_)
      std::ignore = std::system(("ip netns del " + name + " 2>/dev/null").c_str());
    fail(ExitCode::kBadConfig, "cannot create two network namespaces (iproute2 and root are needed): {}",
         error.what());
  }
}

NetworkPair::~NetworkPair() {
  // Deleting the namespaces also deletes the veth pair.
  for (const std::string& name : names_) std::ignore = std::system(("ip netns del " + name).c_str());
}

void NetworkPair::enter(int side) const {
  const std::string path = "/run/netns/" + names_[static_cast<size_t>(side)];
  const UniqueFd handle(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!handle || ::setns(handle.get(), CLONE_NEWNET) != 0) {
    fail_errno(ExitCode::kIoError, errno, fmt::format("{}: cannot enter", path));
  }
}

std::string NetworkPair::run(int side, const std::string& command) const {
  return run_shell(fmt::format("ip netns exec {} sh -c '{}'", names_[static_cast<size_t>(side)], command));
}

}  // namespace tessera
