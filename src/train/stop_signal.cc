#include "train/stop_signal.h"

#include <unistd.h>

#include <atomic>

#include "base/error.h"

namespace tessera {
namespace {

std::atomic<int> first_signal = 0;
std::atomic<bool> handling = false;
std::atomic<void (*)()> call_before_exit = nullptr;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<void (*)()>::is_always_lock_free,
              "used in a signal handler");

void note_signal(int signal_number) {
  int none = 0;
  const bool is_first = first_signal.compare_exchange_strong(none, signal_number);
  if (is_first || signal_number != SIGINT) return;
  if (void (*call)() = call_before_exit) call();
  _exit(128 + SIGINT);
}

}  // namespace

StopSignals::StopSignals(void (*before_exit)()) {
  TESSERA_CHECK(!handling.exchange(true), "two StopSignals at a time");
  first_signal = 0;
  call_before_exit = before_exit;
  struct sigaction action = {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &former_interrupt_);
  sigaction(SIGTERM, &action, &former_terminate_);
}

StopSignals::~StopSignals() {
  sigaction(SIGINT, &former_interrupt_, nullptr);
  sigaction(SIGTERM, &former_terminate_, nullptr);
  handling = false;
}

int StopSignals::received() const { return first_signal; }

}  // namespace tessera
