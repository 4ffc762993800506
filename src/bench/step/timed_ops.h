// Where the time of a step goes, by operation.
#pragma once

#include <map>
#include <string>

#include "ops/forwarding_ops.h"

namespace tessera {

// Adds up the wall-clock time of every call.
class TimedOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  // By the name of the operation; the parts of a loss that is cut into chunks count as one.
  const std::map<std::string, double>& seconds() const { return seconds_; }
  void add_seconds(const std::string& name, double seconds) { seconds_[name] += seconds; }
  void reset() { seconds_.clear(); }

 private:
  void around(const OpCall& call, FunctionRef<void()> run) override;

  std::map<std::string, double> seconds_;
};

}  // namespace tessera
