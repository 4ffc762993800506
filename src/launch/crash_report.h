// The other side of launch/crash_handler.h: a process that names where another one is dying.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "launch/crash_handler.h"
#include "launch/process_modules.h"

namespace tessera {

// "killed by signal 11 (SIGSEGV), segmentation fault at address 0x10, in tessera::f <- tessera::g <- main":
// the function where it happened, then those of the program that called it. `stack` holds words from the
// place of the fault on: where the return addresses do not lead back into the program, as from generated
// code, those that look like one name who has probably called.
std::string describe_crash(const CrashFacts& facts, std::span<const uint64_t> stack,
                           const ProcessModules& modules);

// The whole of the process that kDescribeCrashArgument starts: facts and stack come on standard input. Leaves
// the error report of the rank, for the agent, and writes the line that the rank is to write, or nothing
// where the agent shows it. Returns the exit code.
int run_describe_crash();

}  // namespace tessera
