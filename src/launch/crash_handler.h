// One line about a process that dies of SIGSEGV, SIGBUS, SIGILL, SIGFPE or SIGABRT: of which, and where.
//
//   error: rank 2 was killed by signal 11 (SIGSEGV), segmentation fault at address 0x10, in tessera::f <-
//   main
//
// Nothing is safe in a process that has faulted: it may hold the lock of the heap, or have overwritten it. So
// the handler itself makes system calls only. It finds the return addresses and starts this program again, as
// a process that looks up the names (launch/crash_report.h) and leaves the error report for the agent. When
// that fails or takes too long the line has the address within the program instead. Then the process dies of
// its signal, as without a handler.
#pragma once

#include <array>
#include <cstdint>

namespace tessera {

// What the dying process knows; on its way to the other through a pipe, with what lies on the stack behind
// it.
struct CrashFacts {
  int32_t signal = 0;
  int32_t code = 0;  // si_code
  int32_t pid = 0;
  int32_t parent = 0;
  int32_t sender = 0;    // process that has sent the signal, where code says that one has
  int32_t rank = -1;     // -1: not one of several
  uint64_t address = 0;  // si_addr, of a fault
  uint64_t program = 0;  // some address within the program
  int64_t num_frames = 0;
  std::array<uint64_t, 24> frames = {};  // where it happened, then return addresses, innermost first
};
// Of the stack: what lies at the place of the fault and before it.
inline constexpr int64_t kCrashStackBytes = 8192;

// The program is started with this as its only argument to look up the names.
inline constexpr const char* kDescribeCrashArgument = "--describe-crash";

// To be called once, on the main thread, whose stack may overflow: the handler runs on another one. `program`
// is the path of the program that looks up names, and outlives the process's end; `before_line`, which may be
// null, is called before a line is written and makes system calls only. Without effect under AddressSanitizer
// and ThreadSanitizer, which report such ends themselves.
void install_crash_handler(const char* program, void (*before_line)());

// For the line, from now on.
void set_crash_rank(int rank);

}  // namespace tessera
