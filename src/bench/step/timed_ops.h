// Where the time of a step goes, by operation.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "ops/forwarding_ops.h"

namespace tessera {

// Adds up the device's time of every call.
class TimedOps final : public ForwardingOps {
 public:
  explicit TimedOps(Ops& ops) : ForwardingOps(ops), clock_(ops.device().make_clock()) {}

  // By the name of the operation; the parts of a loss that is cut into chunks count as one.
  const std::map<std::string, double>& seconds() {
    clock_->finish();
    return seconds_;
  }
  void add_seconds(const std::string& name, double seconds) { seconds_[name] += seconds; }
  void reset() {
    clock_->discard();
    seconds_.clear();
  }

 private:
  void around(const OpCall& call, FunctionRef<void()> run) override;

  std::unique_ptr<DeviceClock> clock_;
  std::map<std::string, double> seconds_;  // a map, as values must keep their addresses
};

}  // namespace tessera
