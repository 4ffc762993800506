// Writes checkpoints while the run continues. All ranks begin one together and each writes its share in the
// background. After every step the ranks learn whether all have finished; rank 0 then commits the checkpoint,
// also in the background.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "checkpoint/checkpoint_writer.h"
#include "comm/communicator.h"
#include "platform/thread_pool.h"
#include "report/checkpoint_use.h"
#include "shard/store_state.h"

namespace tessera {

// The outcome of a checkpoint; known to rank 0.
struct CheckpointOutcome {
  CheckpointUse use;
  std::string error = {};  // "" = the checkpoint is complete
};

// A rank's progress with its part of the checkpoint under way.
struct CheckpointShare {
  bool finished = false;  // successfully or not
  bool failed = false;
  int64_t bytes = 0;
  int64_t shared_bytes = 0;
  double stall_s = 0;
};

class CheckpointSaver {
 public:
  // Arguments passed by reference must outlive this.
  CheckpointSaver(Communicator& comm, ThreadPool& pool, const StoreState& state, const WriteOptions& options);
  // Abandons an incomplete checkpoint.
  ~CheckpointSaver();

  // Collective; call only when no checkpoint is in progress (finish()). Only rank 0's `record` and
  // `after_commit` are used; the latter is called from another thread once the checkpoint is complete and
  // must not throw. Returns false if the checkpoint could not be started; rank 0 then has the outcome.
  bool begin(const CheckpointPlan& plan, RunRecord record, std::function<void()> after_commit);

  // True until all ranks are known to have written their shares. The same on all ranks.
  bool is_writing() const { return writing_; }
  // Must be called before elements of this rank change.
  void before_change(ElementRange elements);

  // A rank's report after a step, and the reports of all ranks. Collective only if one has failed.
  // Error(kNumerics) if a value does not fit the type of the model's files: that ends a run.
  CheckpointShare share();
  void take_shares(std::span<const CheckpointShare> by_rank);

  // Collective: waits until the checkpoint in progress, if any, is complete or has failed.
  void finish();

  // On rank 0, once per checkpoint.
  std::optional<CheckpointOutcome> take_outcome();

  // Bytes per second this rank reached in the last checkpoint; 0 = there was none.
  double bytes_per_second() const { return bytes_per_second_; }

 private:
  bool is_root() const { return comm_->world().rank == 0; }
  void settle();
  // The first rank that failed tells all ranks why; throws if the failure ends the run.
  void fail_together();
  void start_commit();
  void wait_for_commit();

  Communicator* comm_;
  ThreadPool* pool_;
  const StoreState* state_;
  WriteOptions options_;

  CheckpointPlan plan_;
  RunRecord record_;
  std::function<void()> after_commit_;
  Stopwatch since_begin_;
  double begin_s_ = 0;
  bool writing_ = false;
  std::unique_ptr<CheckpointWriter> writer_;
  std::optional<Error> failure_;  // of this rank
  bool settled_ = false;          // writer_ has finished or failed, as failure_ tells
  std::future<void> commit_;
  CheckpointOutcome committing_;
  std::optional<CheckpointOutcome> outcome_;
  double bytes_per_second_ = 0;
};

}  // namespace tessera
