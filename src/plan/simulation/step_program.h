// The order in which a node computes, issues collectives and waits for them during training: that of
// WeightStore, GradientStore (zero) and the trainer, for every ZeRO stage and gather schedule. It does not
// depend on timing.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/simulation/step_costs.h"
#include "zero/zero_memory.h"

namespace tessera {

enum class TransferKind {
  kGather,  // all_gather of weights; stage 0: of sums
  kReduce,  // reduce_scatter of gradients
  kValues   // all_gather of a few numbers: loss and gradient norm, signals
};

// A collective of all nodes, on all rails at once; they are numbered in the order of issue.
struct SimulatedTransfer {
  TransferKind kind = TransferKind::kGather;
  int step = 0;              // in which it is issued
  double pair_bytes = 0;     // payload that each node sends to each other one
  double pair_messages = 0;  // these bytes arrive in
};

enum class ActionKind {
  kCompute,  // seconds, which a slow node takes longer for
  kOther,    // seconds that every node takes
  kIssue,    // of the next transfer, which runs in the background after all issued before
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

  // Payload that a node sends in transfers issued in this step.
  double sent_bytes(int step, int num_nodes) const;
  // Seconds of computation in one of the steps.
  double compute_s(int step) const;
};

// `num_steps` steps of which the first begins with new weights, as all others do.
StepProgram step_program(const ZeroLayout& layout, const ZeroSettings& settings, const StepCosts& costs,
                         bool is_tied, int connections, int num_steps);

}  // namespace tessera
