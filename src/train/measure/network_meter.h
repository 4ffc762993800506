// Measures what the steps of a run send between nodes, and how long that takes.
#pragma once

#include "comm/network/network_group.h"

namespace tessera {

// Counts the traffic of this rank's group between each start() and stop(), so that what is not part of a step
// (sums of losses, evaluations, saving) is left out.
class NetworkMeter {
 public:
  // The group must outlive this. The meter begins stopped.
  explicit NetworkMeter(NetworkGroup& group) : group_(&group) {}

  void start();
  // Waits for operations in progress: whatever was begun counts.
  void stop();
  // Traffic counted since the last call. Call only while stopped.
  NetworkCounters take();

 private:
  NetworkGroup* group_;
  bool running_ = false;
  NetworkCounters begin_;
  NetworkCounters counted_;
};

// Stops a meter during its lifetime.
class NetworkMeterPause {
 public:
  explicit NetworkMeterPause(NetworkMeter& meter) : meter_(&meter) { meter_->stop(); }
  // Restarts even after a failure: there will be no next step then.
  ~NetworkMeterPause() { meter_->start(); }
  NetworkMeterPause(const NetworkMeterPause&) = delete;
  NetworkMeterPause& operator=(const NetworkMeterPause&) = delete;

 private:
  NetworkMeter* meter_;
};

}  // namespace tessera
