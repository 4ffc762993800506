// Ends a run early on SIGINT, SIGTERM or SIGHUP: ranks receive signals at different times, and have to leave
// the same step together, in the time that is left until the process is killed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/clock.h"
#include "comm/communicator.h"
#include "train/measure/network_meter.h"

namespace tessera {

struct StopOptions {
  bool saves = true;                         // a checkpoint is written before the process ends
  double time_to_end_s = 0;                  // from the signal until the process is killed
  std::function<double()> write_estimate_s;  // seconds that the checkpoint takes
};

class StopAgreement {
 public:
  // comm and meter must outlive this.
  StopAgreement(Communicator& comm, NetworkMeter& meter, StopOptions options);

  // `stop_signal` returns the signal that this process has received, 0 for none. From now on signals that
  // other ranks receive count as well.
  void listen(std::function<int()> stop_signal);

  // The signal on which all ranks have agreed to end the run; 0 for none.
  int agreed_signal() const { return agreed_signal_; }
  // Between steps.
  bool is_wanted();
  // Whether this rank has seen a signal.
  bool has_signal() { return received_signal() != 0; }
  // Collective, before a step: whether any rank gives up waiting for its rows because of a signal.
  bool stop_waiting(bool gives_up);

  // The phase that the ranks are in, as far as it may be abandoned.
  enum class Phase { kOther, kPasses, kEvaluation };
  void enter(Phase phase) { phase_ = phase; }
  void begin_step() { since_step_began_ = Stopwatch(); }
  void end_step(double step_time_s, double pass_s) {
    last_step_s_ = step_time_s;
    pass_s_ = pass_s;
  }

  // Between layers: false once this rank abandons the pass. It then computes nothing more but still opens and
  // closes parameter groups, so that the others, who may be anywhere in the step, do not wait for it.
  bool continue_computing();
  bool has_abandoned() const { return has_abandoned_; }
  // Collective, before pass `pass` of a step: whether any rank has abandoned the step. To save time, not
  // every call asks.
  bool abandon_together(int64_t pass);
  // Collective: whether to end the evaluation because any rank has received a signal.
  bool stop_evaluation();

  // A rank's report after a step, and the reports of all ranks. False: the step was abandoned.
  struct Share {
    bool has_abandoned = false;
    int signal = 0;
  };
  Share share();
  bool take_shares(std::span<const Share> by_rank);

 private:
  int received_signal();
  bool must_abandon() const;
  // Collective: agrees on the signal if `wish` is true on any rank.
  bool stop_together(bool wish);

  Communicator& comm_;
  NetworkMeter& meter_;
  StopOptions options_;
  std::function<int()> stop_signal_;
  Phase phase_ = Phase::kOther;
  int received_signal_ = 0;  // by this process or, as the store tells, by another rank
  int agreed_signal_ = 0;
  bool has_abandoned_ = false;
  std::optional<Stopwatch> since_signal_;
  Stopwatch since_step_began_;
  // Measured in the last step; pass_s_ is the mean over the ranks and identical on all of them.
  double last_step_s_ = 0;
  double pass_s_ = 0;
};

}  // namespace tessera
