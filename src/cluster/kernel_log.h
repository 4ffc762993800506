// The kernel's messages.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cluster/check.h"

namespace tessera {

struct KernelMessage {
  double seconds = 0;  // since the machine started
  std::string text;
};

// Messages older than this do not count.
inline constexpr double kKernelLogSeconds = 86'400;

// All messages that the kernel still has, at most kMaxKernelMessages of them; nullopt if this process may not
// read them (they need CAP_SYSLOG where kernel.dmesg_restrict is set, and /dev/kmsg, which containers lack).
inline constexpr size_t kMaxKernelMessages = 100'000;
std::optional<std::vector<KernelMessage>> kernel_messages(const std::filesystem::path& root = "/");

// Hardware errors, lockups, read or write errors and hung tasks of the last day; corrected memory errors are
// left to check_memory_errors(). The messages sought are those of Linux 5.10 to 6.12.
Check check_kernel_log(const std::optional<std::vector<KernelMessage>>& messages, double uptime);

}  // namespace tessera
