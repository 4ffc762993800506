// The termination message of a container: what `kubectl describe pod` and `tessera status` show of one that
// has ended, without its log.
#pragma once

#include <string>
#include <string_view>

#include "comm/ranks/world.h"

namespace tessera {

// The file that the kubelet creates for every container; TESSERA_TERMINATION_LOG names another, for a
// container with its own terminationMessagePath.
inline constexpr const char* kTerminationLog = "/dev/termination-log";
inline constexpr const char* kTerminationLogVariable = "TESSERA_TERMINATION_LOG";
// Kubernetes keeps no more than this of a message.
inline constexpr size_t kMaxTerminationBytes = 4096;

enum class EarlierMessage { kReplaced, kKept };

// Writes one line of at most kMaxTerminationBytes of UTF-8. Outside of a pod, where there is no such file and
// the variable is not set, and where it cannot be written, nothing happens: the same line is in the log.
void leave_termination_message(std::string_view message, EarlierMessage earlier = EarlierMessage::kReplaced,
                               const Environment& environment = process_environment());

}  // namespace tessera
