// What a signal does to a run: it ends with a checkpoint of the last finished step, in the time that it is
// given.
#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>

#include "train/trainer.h"

namespace tessera {
namespace {

// Where no checkpoint has been written yet: a network disk.
constexpr double kAssumedBytesPerSecond = 100e6;
// What is not written piece by piece: syncing, the manifest, leaving.
constexpr double kCommitSeconds = 1;
// Of the time until the process is killed: estimates may be too low by a quarter.
constexpr double kPlannedShare = 0.8;
// Ranks ask each other this often, and no more often than between all passes.
constexpr double kAskSeconds = 0.1;
// Where the store has the number of the signal that a rank got.
constexpr const char* kSignalKey = "stop signal";

}  // namespace

double Trainer::write_estimate_s() const {
  double elements = 0;
  for (const ElementRange& range : parameters_->owned())
    elements += static_cast<double>(range.end - range.begin);
  const double element_bytes = static_cast<double>(dtype_bytes(args_.export_dtype())) + 12;
  const double measured = saver_->bytes_per_second();
  const double once_s = elements * element_bytes / (measured > 0 ? measured : kAssumedBytesPerSecond);
  return kCommitSeconds + once_s * (saver_->is_writing() ? 2 : 1);
}

bool Trainer::must_give_up() const {
  if (!args_.save_on_sigterm) return true;
  const double rest_s = std::max(0.0, last_step_.step_time_s - since_step_began_.seconds());
  return since_signal_->seconds() + rest_s + write_estimate_s() > kPlannedShare * args_.time_to_end_s();
}

void Trainer::watch_for_signal() {
  if (comm_->store()) comm_->store()->watch(kSignalKey);
}

int Trainer::received_signal() {
  if (received_signal_ != 0) return received_signal_;
  StoreClient* store = comm_->store();
  if (stop_signal_) received_signal_ = stop_signal_();
  if (received_signal_ != 0 && store) store->set(kSignalKey, std::to_string(received_signal_));
  if (received_signal_ == 0 && store) {
    if (const auto told = store->watched())
      received_signal_ = *told == std::to_string(SIGINT) ? SIGINT : SIGTERM;
  }
  return received_signal_;
}

// Ranks notice a signal at different times. Who gives up computes no more but still opens and closes
// parameter groups, so that the others, who may be anywhere in the step, do not wait for it.
bool Trainer::go_on_computing() {
  if (!since_signal_ && received_signal() != 0) since_signal_.emplace();
  if (since_signal_ && !given_up_) given_up_ = in_evaluation_ || (in_passes_ && must_give_up());
  return !given_up_;
}

bool Trainer::give_up_together(int64_t pass) {
  const double passes_between = pass_s_ > 0 ? std::ceil(kAskSeconds / pass_s_) : 1;
  if (!world().is_single() && std::fmod(static_cast<double>(pass), passes_between) != 0) return false;
  const NetworkMeterPause pause(network_meter_);
  go_on_computing();
  if (!stop_together(given_up_)) return false;
  comm_->rail().wait_for_all();  // gradients under way
  return true;
}

bool Trainer::stop_together(bool wish) {
  const int signal = received_signal();
  std::array<double, 3> votes = {signal == SIGINT ? 1.0 : 0.0, signal == SIGTERM ? 1.0 : 0.0,
                                 wish ? 1.0 : 0.0};
  comm_->all_reduce_sum(votes, {"signals"});
  if (votes[2] == 0) return false;
  agreed_signal_ = votes[1] > 0 ? SIGTERM : SIGINT;
  return true;
}

}  // namespace tessera
