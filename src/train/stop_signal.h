// Turns SIGINT and SIGTERM into a request to stop after the current step.
#pragma once

#include <csignal>

namespace tessera {

// Handles both signals during its lifetime, then restores the previous handlers; at most one exists at a
// time. The handler runs on an alternate stack of the thread that constructs this. A SIGINT after the first
// signal ends the process at once with 128 + SIGINT, after before_exit(), which must be async-signal-safe.
class StopSignals {
 public:
  explicit StopSignals(void (*before_exit)() = nullptr);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The first signal received, 0 = none; after its lifetime that of the last one. Any thread may ask.
  static int received();

 private:
  struct sigaction former_interrupt_ = {};
  struct sigaction former_terminate_ = {};
};

}  // namespace tessera
