// The activity of a process, seen from outside, so that it also works for one that hangs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace tessera {

// Returns lines: the process with its state and memory, then every thread with its state, where it is in the
// kernel, and its stack as function names, innermost first. Stops the process for the milliseconds this
// takes. Needs permission to trace it, which a parent has unless a sandbox forbids it; otherwise a line says
// why there are no stacks. If the process is gone, the text says so.
std::string describe_process(pid_t pid);

struct ProcessState {
  bool is_there = false;
  std::string state;  // "running", "sleeping", "stopped", "disk sleep", as the kernel says
  int64_t resident_bytes = 0;
  int64_t peak_resident_bytes = 0;
};
ProcessState process_state(pid_t pid);

}  // namespace tessera
