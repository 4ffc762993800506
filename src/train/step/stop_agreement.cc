#include "train/step/stop_agreement.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <string>
#include <utility>

namespace tessera {
namespace {

// Share of the time until the process is killed that is planned for: estimates may be too low by a quarter.
constexpr double kPlannedShare = 0.8;
// Ranks ask each other this often, and at most before every pass.
constexpr double kAskSeconds = 0.1;
// Under this name the store has the number of the signal that a rank received.
constexpr const char* kSignalKey = "stop signal";

// SIGTERM wins: its sender does not wait long. Then SIGINT.
int stronger(int a, int b) { return a == SIGTERM || b == SIGTERM ? SIGTERM : std::max(a, b); }

}  // namespace

StopAgreement::StopAgreement(Communicator& comm, NetworkMeter& meter, StopOptions options)
    : comm_(comm), meter_(meter), options_(std::move(options)) {}

void StopAgreement::listen(std::function<int()> stop_signal) {
  stop_signal_ = std::move(stop_signal);
  if (comm_.store()) comm_.store()->watch(kSignalKey);
}

int StopAgreement::received_signal() {
  if (received_signal_ != 0) return received_signal_;
  StoreClient* store = comm_.store();
  if (stop_signal_) received_signal_ = stop_signal_();
  if (received_signal_ != 0 && store) store->set(kSignalKey, std::to_string(received_signal_));
  if (received_signal_ == 0 && store) {
    if (const auto told = store->watched()) {
      for (const int number : {SIGHUP, SIGINT, SIGTERM}) {
        if (*told == std::to_string(number)) received_signal_ = number;
      }
    }
  }
  return received_signal_;
}

// Several ranks agree between passes and at the end of every step.
bool StopAgreement::is_wanted() {
  if (comm_.world().is_single() && agreed_signal_ == 0) agreed_signal_ = received_signal();
  return agreed_signal_ != 0;
}

bool StopAgreement::stop_waiting(bool gives_up) {
  const NetworkMeterPause pause(meter_);
  return stop_together(gives_up);
}

bool StopAgreement::must_abandon() const {
  if (!options_.saves) return true;
  const double rest_s = std::max(0.0, last_step_s_ - since_step_began_.seconds());
  return since_signal_->seconds() + rest_s + options_.write_estimate_s() >
         kPlannedShare * options_.time_to_end_s;
}

bool StopAgreement::continue_computing() {
  if (!since_signal_ && received_signal() != 0) since_signal_.emplace();
  if (since_signal_ && !has_abandoned_) {
    has_abandoned_ = phase_ == Phase::kEvaluation || (phase_ == Phase::kPasses && must_abandon());
  }
  return !has_abandoned_;
}

bool StopAgreement::abandon_together(int64_t pass) {
  const double passes_between = pass_s_ > 0 ? std::ceil(kAskSeconds / pass_s_) : 1;
  if (!comm_.world().is_single() && std::fmod(static_cast<double>(pass), passes_between) != 0) return false;
  const NetworkMeterPause pause(meter_);
  continue_computing();
  if (!stop_together(has_abandoned_)) return false;
  comm_.rail().wait_for_all();  // gradients under way
  return true;
}

bool StopAgreement::stop_evaluation() { return stop_together(received_signal() != 0); }

bool StopAgreement::stop_together(bool wish) {
  struct Vote {
    int signal;
    bool wish;
  };
  int signal = 0;
  bool any_wish = false;
  const auto count = [&](const Vote& vote) {
    signal = stronger(signal, vote.signal);
    any_wish = any_wish || vote.wish;
  };
  const Vote own = {received_signal(), wish};
  if (comm_.world().is_single()) {
    count(own);
  } else {
    std::ranges::for_each(comm_.all_gather(own, {"signals"}), count);
  }
  if (any_wish) agreed_signal_ = signal;
  return any_wish;
}

StopAgreement::Share StopAgreement::share() { return {has_abandoned_, received_signal()}; }

bool StopAgreement::take_shares(std::span<const Share> by_rank) {
  bool is_abandoned = false;
  for (const Share& share : by_rank) {
    if (share.signal != 0) agreed_signal_ = stronger(agreed_signal_, share.signal);
    is_abandoned = is_abandoned || share.has_abandoned;
  }
  return !is_abandoned;
}

}  // namespace tessera
