#include "report/run_totals.h"

#include <algorithm>

namespace tessera {

NetworkUse network_use(const NetworkCounters& sums, int world_size) {
  NetworkUse use;
  use.sent_bytes = sums.sent_bytes;
  use.received_bytes = sums.received_bytes;
  use.time_s = sums.busy_s / world_size;
  use.hidden = sums.busy_s > 0 ? std::max(0.0, 1 - sums.wait_s / sums.busy_s) : 1;
  return use;
}

StepTimes& StepTimes::operator+=(const StepTimes& more) {
  for (const auto& [name, seconds] : kStepTimes) this->*seconds += more.*seconds;
  return *this;
}

void RunTotals::add(const StepMetrics& metrics) {
  num_tokens_ += metrics.num_tokens;
  times_.steps_s += metrics.step_time_s;
  times_.steps += metrics.times;
  times_.snapshot_s += metrics.peer_snapshot_s.value_or(0);
  if (metrics.checkpoint) add(*metrics.checkpoint);
  flops_ += metrics.tflops * 1e12 * metrics.step_time_s;
  if (metrics.network && num_steps_ > 0) {
    network_.sent_bytes += metrics.network->sent_bytes;
    network_.received_bytes += metrics.network->received_bytes;
    network_.time_s += metrics.network->time_s;
    network_.hidden += metrics.network->time_s * metrics.network->hidden;
  }
  if (metrics.network) has_network_ = true;
  if (metrics.disk) disk_.add(*metrics.disk);
  times_.num_steps = ++num_steps_;
  last_step_ = metrics;
}

void RunTotals::add(const CheckpointUse& checkpoint) { times_.checkpoint_stall_s += checkpoint.stall_s; }

double RunTotals::step_s() const { return std::max(times_.steps_s, 1e-9); }

double RunTotals::tokens_per_second() const { return static_cast<double>(num_tokens_) / step_s(); }

double RunTotals::tflops() const { return flops_ * 1e-12 / step_s(); }

std::optional<NetworkUse> RunTotals::network() const {
  const int64_t count = num_steps_ - 1;
  if (!has_network_ || count < 1) return std::nullopt;
  NetworkUse mean;
  mean.sent_bytes = network_.sent_bytes / count;
  mean.received_bytes = network_.received_bytes / count;
  mean.time_s = network_.time_s / static_cast<double>(count);
  mean.hidden = network_.time_s > 0 ? network_.hidden / network_.time_s : 1;
  return mean;
}

DiskUse RunTotals::disk() const {
  DiskUse mean;
  mean.add(disk_, 1 / static_cast<double>(std::max<int64_t>(1, num_steps_)));
  return mean;
}

}  // namespace tessera
