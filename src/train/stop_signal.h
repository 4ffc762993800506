// SIGINT and SIGTERM as a wish to stop after the present step.
#pragma once

#include <csignal>

namespace tessera {

// Handles both signals while it lives, then puts the former handlers back; at most one exists at a time. A
// SIGINT after the first signal ends the process at once with 128 + SIGINT, after before_exit(), which must
// be async-signal-safe.
class StopSignals {
 public:
  explicit StopSignals(void (*before_exit)() = nullptr);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The first signal that came, 0 = none.
  int received() const;

 private:
  struct sigaction former_interrupt_ = {};
  struct sigaction former_terminate_ = {};
};

}  // namespace tessera
