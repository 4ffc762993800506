// What the steps of a run send between nodes, and how long that takes.
#pragma once

#include "comm/network_group.h"

namespace tessera {

// Counts what this rank's group does between start() and stop(), over and over, so that what is no part of a
// step (sums of losses, evaluations, saving) stays out.
class NetworkMeter {
 public:
  // The group must outlive this. Stopped.
  explicit NetworkMeter(NetworkGroup& group) : group_(&group) {}

  void start();
  // Waits until nothing is under way: what was begun counts.
  void stop();
  // What was counted since the last time. Only while stopped.
  NetworkCounters take();

 private:
  NetworkGroup* group_;
  bool running_ = false;
  NetworkCounters begin_;
  NetworkCounters counted_;
};

// Stops a meter for as long as it lives.
class NetworkMeterPause {
 public:
  explicit NetworkMeterPause(NetworkMeter& meter) : meter_(&meter) { meter_->stop(); }
  // Also when something failed: there will be no next step then.
  ~NetworkMeterPause() { meter_->start(); }
  NetworkMeterPause(const NetworkMeterPause&) = delete;
  NetworkMeterPause& operator=(const NetworkMeterPause&) = delete;

 private:
  NetworkMeter* meter_;
};

}  // namespace tessera
