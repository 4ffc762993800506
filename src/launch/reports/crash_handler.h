// Prints one line about a process that dies of SIGSEGV, SIGBUS, SIGILL, SIGFPE or SIGABRT: which signal, and
// where.
//
//   error: rank 2 was killed by signal 11 (SIGSEGV), segmentation fault at address 0x10,
//          in tessera::f <- main
//
// Nothing is safe in a process that has faulted: it may hold the heap's lock, or have corrupted the heap. So
// the handler itself only makes system calls. It finds the return addresses and starts this program again as
// a process that looks up the names (launch/reports/crash_report.h) and leaves the error report for the
// agent. If that fails or takes too long, the line shows the address within the program instead. Then the
// process dies of its signal, as it would without a handler.
#pragma once

#include <array>
#include <cstdint>

namespace tessera {

// The dying process's record of its crash. Sent to the other process through a pipe, followed by the contents
// of the stack.
struct CrashRecord {
  int32_t signal = 0;
  int32_t code = 0;  // si_code
  int32_t pid = 0;
  int32_t parent = 0;
  int32_t sender = 0;    // the process that sent the signal, if `code` says that one did
  int32_t rank = -1;     // -1: not part of a multi-rank job
  uint64_t address = 0;  // si_addr of a fault
  uint64_t program = 0;  // some address within the program
  int64_t num_frames = 0;
  std::array<uint64_t, 24> frames = {};  // where it happened, then return addresses, innermost first
};
// Bytes of the stack that are sent, from the stack pointer at the fault towards the callers.
inline constexpr int64_t kCrashStackBytes = 8192;

// The program is started with this as its only argument to look up the names.
inline constexpr const char* kDescribeCrashArgument = "--describe-crash";

// Call once, on the main thread. The handler runs on a separate stack, as the crash may be a stack overflow:
// one for the main thread, and one for each other thread, whatever starts it, as crash_handler.cc defines
// the program's pthread_create. `program` is the path of the program that looks up names, and must stay
// valid until the process ends; `before_line`, which may be null, is called before a line is written and
// must only make system calls. No effect under AddressSanitizer and ThreadSanitizer, which report crashes
// themselves.
void install_crash_handler(const char* program, void (*before_line)());

// Sets the rank shown in the line from now on.
void set_crash_rank(int rank);

}  // namespace tessera
