#include "platform/stop_signal.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <ctime>

#include "base/error.h"

namespace tessera {
namespace {

// Tools that end a program (timeout, srun) send SIGINT to it and again to its process group: a signal within
// this time of the first is not a second Ctrl-C.
constexpr int64_t kSameInterruptMs = 100;

std::atomic<int> first_signal = 0;
std::atomic<int64_t> first_time_ms = 0;
std::atomic<bool> handling = false;
std::atomic<void (*)()> call_before_exit = nullptr;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free &&
                  std::atomic<void (*)()>::is_always_lock_free,
              "used in a signal handler");

int64_t monotonic_ms() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

// oneDNN's float32 products keep the stack pointer in memory from malloc while they run: a handler on the
// interrupted stack would overwrite the heap below it. The threads of a pool block these signals, so that
// they interrupt this thread alone.
void provide_signal_stack() {
  stack_t present = {};
  if (sigaltstack(nullptr, &present) == 0 && (present.ss_flags & SS_DISABLE) == 0) return;
  // On a machine with AMX, the registers saved by the kernel alone take 11 KiB.
  alignas(64) static std::array<std::byte, size_t{64} << 10> memory;
  stack_t stack = {};
  stack.ss_sp = memory.data();
  stack.ss_size = memory.size();
  sigaltstack(&stack, nullptr);
}

void note_signal(int signal_number) {
  const int64_t now_ms = monotonic_ms();
  if (first_signal == 0) first_time_ms = now_ms;
  int first = 0;
  const bool is_first = first_signal.compare_exchange_strong(first, signal_number);
  if (is_first || signal_number != SIGINT) return;
  if (first == SIGINT && now_ms - first_time_ms < kSameInterruptMs) return;
  if (void (*call)() = call_before_exit) call();
  _exit(128 + SIGINT);
}

}  // namespace

StopSignals::StopSignals(void (*before_exit)()) {
  TESSERA_CHECK(!handling.exchange(true), "two StopSignals at a time");
  first_signal = 0;
  call_before_exit = before_exit;
  provide_signal_stack();
  struct sigaction action = {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &former_interrupt_);
  sigaction(SIGTERM, &action, &former_terminate_);
  sigaction(SIGHUP, nullptr, &former_hangup_);
  if (former_hangup_.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

StopSignals::~StopSignals() {
  sigaction(SIGINT, &former_interrupt_, nullptr);
  sigaction(SIGTERM, &former_terminate_, nullptr);
  sigaction(SIGHUP, &former_hangup_, nullptr);
  handling = false;
}

int StopSignals::received() { return first_signal; }

}  // namespace tessera
