// The all-gather of the ranks after a step: one collective for every part that takes part in it.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "report/observer.h"
#include "train/measure/job_peak.h"
#include "train/output/checkpoint_saver.h"
#include "train/step/step_runner.h"
#include "train/step/stop_agreement.h"

namespace tessera {

// Holds the reports of the last step, indexed by rank. Allocates nothing after the constructor.
class StepGather {
 public:
  // has_disk: offload_dir is used. trains_apart: each node has gradients of its own.
  StepGather(const World& world, bool has_disk, bool trains_apart);

  // Collective.
  void run(const StepPart& part, const StopAgreement::Share& stop, const CheckpointShare& checkpoint,
           const JobPeak::Share& peak, Communicator& comm);

  // Sums and averages over all ranks: loss, gradient norm, tokens, network if there are several nodes, disk
  // if it is used. `times` and disk are those of the passes. If nodes train on their own, the gradient norm
  // is the RMS of the norms of the nodes.
  StepMetrics sums(int64_t num_targets) const;
  // Norm of the gradients that this rank takes part in.
  double norm_for(const World& world) const;

  std::vector<StepPart> parts;
  std::vector<StopAgreement::Share> stops;
  std::vector<CheckpointShare> checkpoints;
  std::vector<JobPeak::Share> peaks;

 private:
  struct Message {
    StepPart part;
    StopAgreement::Share stop;
    CheckpointShare checkpoint;
    JobPeak::Share peak;
  };
  bool has_network_;  // several nodes
  bool has_disk_;
  int num_teams_;  // with gradients of their own
  std::vector<Message> messages_;
  std::vector<RankStep> ranks_;
};

}  // namespace tessera
