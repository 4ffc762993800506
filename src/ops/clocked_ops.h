// Adds up where the time of a step's operations goes. Costs two readings of the clock per operation.
#pragma once

#include <utility>

#include "ops/forwarding_ops.h"

namespace tessera {

// Seconds of the calling thread. On a device that works asynchronously these are the times to issue the
// calls.
struct OperationTimes {
  double products_s = 0;  // of linear layers, with packing of their weights
  double attention_s = 0;
  double elementwise_s = 0;  // everything else: norms, rotary embedding, SwiGLU, embedding, loss, sums
};

class ClockedOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  // Since the last call.
  OperationTimes take() { return std::exchange(times_, {}); }

 private:
  void around(const OpCall& call, FunctionRef<void()> run) override;

  OperationTimes times_;
};

}  // namespace tessera
