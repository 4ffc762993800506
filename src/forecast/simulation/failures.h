// The share of a long run's time that counts if nodes fail and the run resumes from its last checkpoint.
#pragma once

#include <cstdint>

namespace tessera {

struct FailureInputs {
  double node_mtbf_s = 0;  // mean time between failures of one node; exponentially distributed
  double detection_s = 5;
  double restart_s = 120;         // from then until the first step begins
  double checkpoint_stall_s = 0;  // training stall at the start of a checkpoint
  double checkpoint_write_s = 0;  // until it is complete; only one is written at a time
};

struct UsefulTime {
  int64_t checkpoint_steps = 1;  // between two checkpoints
  double useful_share = 1;       // ETTR: time of steps that count / wall time
  double failure_s = 0;          // mean time between failures of the job
  double repeated_steps = 0;     // per failure, finished ones that are computed again
};

// A run of 10,000 failures, simulated failure by failure: the same ones (scaled to their rate) for any
// inputs, so that results can be compared.
UsefulTime useful_time(const FailureInputs& inputs, int num_nodes, double step_s, int64_t checkpoint_steps);

// The result for the checkpoint interval with the most useful time, to about 5 %.
UsefulTime best_useful_time(const FailureInputs& inputs, int num_nodes, double step_s);

}  // namespace tessera
