// The other side of launch/reports/crash_handler.h: a process that finds out where another one is dying.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "launch/reports/crash_handler.h"
#include "launch/reports/process_modules.h"

namespace tessera {

// "killed by signal 11 (SIGSEGV), segmentation fault at address 0x10, in tessera::f <- tessera::g <- main":
// the function where it happened, then its callers within the program. `stack` holds the words from the stack
// pointer at the fault: where the return addresses do not lead back into the program, as from generated code,
// words that look like return addresses give the probable callers.
std::string describe_crash(const CrashRecord& record, std::span<const uint64_t> stack,
                           const ProcessModules& modules);

// Runs the process that kDescribeCrashArgument starts: reads record and stack from standard input, leaves the
// rank's error report for the agent, and writes the line that the rank should print, or nothing if the agent
// shows it. Returns the exit code.
int run_describe_crash();

}  // namespace tessera
