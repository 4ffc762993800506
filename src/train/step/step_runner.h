// The passes of one optimizer step, forward and backward, over the rows of this rank. Knows the model, its
// parameters and the other ranks; nothing of files, schedules or reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/network/network_group.h"
#include "context/context_rank.h"
#include "data/dataset.h"
#include "data/rows/batch_plan.h"
#include "model/trainable_model.h"
#include "ops/clocked_ops.h"
#include "ops/expert_exchange.h"
#include "platform/thread_pool.h"
#include "report/disk_use.h"
#include "shard/parameter_store.h"
#include "tensor/packed_batch.h"
#include "train/guards/replay_check.h"
#include "train/step/neftune.h"
#include "train/step/stop_agreement.h"

namespace tessera {

struct StepOptions {
  double label_smoothing = 0;
  int64_t replay_check_steps = 0;  // interval at which a pass is computed twice; 0 = never
  std::optional<double> neftune_noise_alpha = {};
  uint64_t seed = 0;  // of the noise and of what is dropped
  double lora_dropout = 0;
};

// A rank's results of a step.
struct StepPart {
  double loss_sum = 0;          // over the target tokens of its rows
  double gradient_squares = 0;  // of the gradients that it has summed up
  int64_t num_tokens = 0;
  double flops = 0;
  double compute_s = 0;  // time of the passes without waiting for others
  double wait_s = 0;     // for others during the passes
  double rows_s = 0;     // putting rows into batches
  OperationTimes operations;
  NetworkCounters network;
  DiskUse disk;
  bool replay_differs = false;
};

struct LossDivisor {
  double targets;         // the gradients are those of (sum of token losses) / targets
  double loss_scale = 1;  // of StepPart::loss_sum, so that the sums of ranks with other divisors add up
};

class StepRunner {
 public:
  // Arguments passed by reference must outlive this. `ops`: the model's. `context`: set if ranks share rows,
  // `experts` if nodes share experts. The model calls `stop` between layers from now on.
  StepRunner(TrainableModel& model, ParameterStore& parameters, const Dataset& dataset, Communicator& comm,
             ThreadPool& pool, StopAgreement& stop, ClockedOps& ops, ContextRank* context,
             ExpertExchange* experts, const StepOptions& options);

  // Collective. `passes`: those of all ranks, or teams of them (StepRows). loss = sum of the token losses /
  // the targets of the whole step, so that passes count by their targets. nullopt if the step was abandoned
  // on all ranks.
  std::optional<StepPart> run(int64_t step, const RowLists& passes, const LossDivisor& divisor);

  // Computes the passes of the last run() again, to update in the backward pass; they are not abandoned.
  StepPart run_again(const RowLists& passes);

  // Seconds that computing a pass twice took in the last step; 0 = none was.
  double rehearsal_s() const { return rehearsal_s_; }
  // Where the second time differed on this rank; "" = nowhere.
  const std::string& replay_difference() const { return replay_difference_; }

 private:
  bool run_passes(const RowLists& passes, StepPart* part);
  void run_pass(const RowLists& passes, int64_t pass, PassKind kind, StepPart* part);
  void rehearse(const RowLists& passes);
  void choose_dropout(std::span<const int64_t> rows);
  void mark_layer(int64_t group, WeightUse use);
  bool continue_computing();
  bool may_compute();
  bool has_abandoned();
  // Ranks that share rows.
  int64_t team_size() const { return size_of_team(context_); }
  int64_t num_passes(const RowLists& passes) const;
  std::span<const int64_t> rows_of(const RowLists& passes, int64_t pass) const;
  int64_t token_of_rows(int64_t token) const { return context_ ? context_->token_of_rows(token) : token; }

  TrainableModel& model_;
  ParameterStore& parameters_;
  const Dataset& dataset_;
  Communicator& comm_;
  ThreadPool& pool_;
  StopAgreement& stop_;
  ClockedOps& ops_;
  ContextRank* context_;
  ExpertExchange* experts_;
  StepOptions options_;

  int64_t step_ = 0;  // the one being run, from 1
  float grad_scale_ = 0;
  double loss_scale_ = 1;
  PackedBatch batch_;  // of all rows of a pass
  std::optional<NeftuneNoise> noise_;
  std::vector<uint64_t> dropout_tokens_;  // with dropout
  std::optional<ReplayCheck> replay_;     // during the passes of a step that is checked
  std::string replay_difference_;
  double rehearsal_s_ = 0;
};

}  // namespace tessera
