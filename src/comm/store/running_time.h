#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

namespace tessera {

// The time for which other processes count as silent. Time in which this process itself did not run (it was
// stopped, or its machine overloaded) says nothing about them: their messages from that time are unread.
class RunningTime {
 public:
  using Duration = std::chrono::duration<double>;

  // `period`: how often advance() is called.
  explicit RunningTime(Duration period) : period_(period) {}

  // Since the last call, at most two periods.
  Duration advance() {
    const Clock::time_point now = Clock::now();
    last_gap_ = now - std::exchange(last_call_, now);
    return std::min(last_gap_, 2 * period_);
  }
  // All of the time between the last two calls.
  Duration last_gap() const { return last_gap_; }

 private:
  using Clock = std::chrono::steady_clock;

  Duration period_;
  Clock::time_point last_call_ = Clock::now();
  Duration last_gap_{0};
};

}  // namespace tessera
