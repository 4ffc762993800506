// Adds up where the time of a step's operations goes. Costs two readings of the device's clock per operation.
#pragma once

#include <memory>
#include <utility>

#include "ops/forwarding_ops.h"

namespace tessera {

// Device seconds. They include work that Ops ask of the host in between, such as sending positions to the
// device.
struct OperationTimes {
  double products_s = 0;  // of linear layers, with packing of their weights
  double attention_s = 0;
  double elementwise_s = 0;  // everything else: norms, rotary embedding, SwiGLU, embedding, loss, sums
};

class ClockedOps final : public ForwardingOps {
 public:
  explicit ClockedOps(Ops& ops) : ForwardingOps(ops), clock_(ops.device().make_clock()) {}

  // Does not wait for what has been asked so far, nor count it.
  void restart() {
    clock_->discard();
    times_ = {};
  }
  // Since restart() or the last take(). Waits for the last operation.
  OperationTimes take() {
    clock_->finish();
    return std::exchange(times_, {});
  }

 private:
  void around(const OpCall& call, FunctionRef<void()> run) override;

  std::unique_ptr<DeviceClock> clock_;
  OperationTimes times_;
};

}  // namespace tessera
