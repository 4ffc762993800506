// Where the time of a step goes, by operation.
#pragma once

#include <map>
#include <string>

#include "bench/measure.h"
#include "ops/forwarding_ops.h"

namespace tessera {

// Forwards every call and adds up its wall-clock time.
class TimedOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  const std::map<std::string, double>& seconds() const { return seconds_; }  // by the name of the operation
  void add_seconds(const std::string& name, double seconds) { seconds_[name] += seconds; }
  void reset() { seconds_.clear(); }

 private:
  void around(const char* operation, FunctionRef<void()> call) override {
    seconds_[operation] += seconds_of(call);
  }

  std::map<std::string, double> seconds_;
};

}  // namespace tessera
