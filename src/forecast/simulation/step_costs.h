// Computation of a rank between two uses of the network, by parameter group: the operations of
// forecast/time/step_time.h in the order in which they happen.
#pragma once

#include <cstdint>
#include <vector>

#include "forecast/time/op_costs.h"
#include "forecast/time/step_time.h"

namespace tessera {

// Seconds of one rank of a node, all of whose ranks do the same. Vectors are by parameter group: embedding,
// decoder layers, head.
struct StepCosts {
  struct Pass {
    std::vector<double> forward_s;   // 0 for the head, which is computed backward only
    std::vector<double> backward_s;  // of group 0: the embedding's gradient
    // Rows of all ranks of a node that go to the experts of a layer, if these are divided among nodes.
    std::vector<int64_t> expert_bytes;
  };
  std::vector<Pass> passes;           // of a step
  std::vector<double> packing_s;      // of new weights, before the first use of a group
  std::vector<double> first_sum_s;    // the ranks of a node sum a group's gradients ...
  std::vector<double> further_sum_s;  // ... and add that to earlier passes
  std::vector<double> own_sum_s;      // the sum that came from the network goes to the accumulators
  std::vector<double> update_s;
  double other_s = 0;

  // The time of all passes, with packing and without sums.
  double passes_s() const;
  // Multiplies every time of the passes, sums of gradients included. set_update() replaces the times of the
  // update and the rest.
  void scale_passes(double factor);
  void set_update(double seconds);
};

StepCosts step_costs(StepWalks& walks, const StepInputs& inputs, OpCosts& op_costs);

}  // namespace tessera
