// Turns SIGINT, SIGTERM and SIGHUP into a request to stop after the current step.
#pragma once

#include <csignal>

namespace tessera {

// Handles these signals during its lifetime, then restores the previous handlers; at most one exists at a
// time. SIGHUP stays ignored if it is, as under nohup. The handler runs on an alternate stack of the thread
// that constructs this. A SIGINT after the first signal ends the process at once with 128 + SIGINT, after
// before_exit(), which must be async-signal-safe.
class StopSignals {
 public:
  explicit StopSignals(void (*before_exit)() = nullptr);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The first signal received, 0 = none; once no StopSignals exists, the result of the last one. Thread-safe.
  static int received();

 private:
  struct sigaction former_interrupt_ = {};
  struct sigaction former_terminate_ = {};
  struct sigaction former_hangup_ = {};
};

}  // namespace tessera
