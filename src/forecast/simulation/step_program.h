// The order in which a node computes, issues collectives and waits for them during training: that of
// WeightStore, GradientStore and the trainer, for every ZeRO stage and gather schedule, and that of
// OuterUpdate for nodes that train on their own. It does not depend on timing.
#pragma once

#include <cstdint>
#include <vector>

#include "forecast/simulation/step_costs.h"
#include "shard/layout/zero_memory.h"

namespace tessera {

enum class TransferKind {
  kGather,  // all_gather of weights; stage 0: of sums. Also rows that go to divided experts or come back
  kReduce,  // reduce_scatter of gradients, or of differences of weights
  kValues   // all_gather of a few numbers: loss and gradient norm, signals
};

// The connections that a transfer uses: transfers of a lane run in the order of issue, alongside the other
// lane's, which is that of exchanges between nodes that train apart, or of rows of experts.
enum class SimulatedLane { kStep, kBackground };
inline constexpr size_t kNumLanes = 2;

// A collective of all nodes, on all rails at once; they are numbered in the order of issue.
struct SimulatedTransfer {
  TransferKind kind = TransferKind::kGather;
  int step = 0;              // in which it is issued
  double pair_bytes = 0;     // payload that each node sends to each other one
  double pair_messages = 0;  // these bytes arrive in
  SimulatedLane lane = SimulatedLane::kStep;
};

enum class ActionKind {
  kCompute,  // seconds, which a slow node takes longer for
  kOther,    // seconds that every node takes
  kIssue,    // of the next transfer, which runs after all issued before on its lane
  kWait,     // until a transfer is over
  kStepEnd
};

struct Action {
  ActionKind kind = ActionKind::kCompute;
  double seconds = 0;
  int64_t transfer = 0;
};

struct StepProgram {
  std::vector<Action> actions;
  std::vector<SimulatedTransfer> transfers;
  // By step: how many steps of the steady state it stands for; 0 before that.
  std::vector<double> stands_for;

  // Payload that a node sends in transfers issued in this step.
  double sent_bytes(int step, int num_nodes) const;
  // Seconds of computation in the last step, as in all of the steady state.
  double last_compute_s() const;
};

// Steps that each begin with new weights, until the steady state and one step of that. If nodes train on
// their own, these are the steps of two rounds, in each of which all weights are exchanged once; the steps
// between exchanges only compute, so one stands for all. `layout` is the job's, `costs` come from
// step_costs().
StepProgram step_program(const ZeroLayout& layout, const ZeroSettings& settings, const StepCosts& costs,
                         bool is_tied, int connections);

}  // namespace tessera
