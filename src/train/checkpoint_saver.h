// Checkpoints of a run while it goes on. All ranks begin one together; each writes its share in the
// background; that all have finished is told in the sums of the steps; then rank 0 makes the checkpoint
// complete, in the background too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "checkpoint/checkpoint_writer.h"
#include "comm/communicator.h"
#include "platform/thread_pool.h"
#include "train/parameter_state.h"
#include "train/stopwatch.h"

namespace tessera {

// What became of a checkpoint; known to rank 0.
struct CheckpointOutcome {
  int64_t step = 0;
  std::filesystem::path folder;
  std::string error = {};  // "" = it is complete
  int64_t bytes = 0;       // that the ranks wrote
  double write_s = 0;      // from its beginning until it was complete
  double stall_s = 0;      // for which training stood still, mean of the ranks
};

// A rank's summands in the sums of a step.
struct CheckpointShare {
  double finished = 0;  // 1: this rank is done, well or not
  double failed = 0;
  double bytes = 0;
  double stall_s = 0;
};

class CheckpointSaver {
 public:
  // What is passed by reference must outlive this.
  CheckpointSaver(Communicator& comm, ThreadPool& pool, const ParameterState& state,
                  const WriteOptions& options);
  // Gives up what is not complete.
  ~CheckpointSaver();

  // Collective, and only when none is under way (finish()). `record` and `after_commit`, which may not throw
  // and is called from another thread once the checkpoint is complete, count on rank 0. False: it could not
  // be begun, rank 0 has the outcome.
  bool begin(const CheckpointPlan& plan, RunRecord record, std::function<void()> after_commit);

  // Not all ranks are known to have written their shares. The same on all ranks.
  bool is_writing() const { return writing_; }
  // Before elements of this rank change.
  void before_change(ElementRange elements);

  // What this rank adds to the sums of a step, and what the sums are. Collective only where they tell of a
  // failure. Error(kNumerics) where a value does not fit the type of the model's files: that ends a run.
  CheckpointShare share();
  void take_sums(const CheckpointShare& sums);

  // Collective: until the one under way, if any, is complete or has failed.
  void finish();

  // On rank 0, once for every checkpoint.
  std::optional<CheckpointOutcome> take_outcome();

  // Bytes a second that this rank has reached in the last checkpoint; 0: there was none.
  double bytes_per_second() const { return bytes_per_second_; }

 private:
  bool is_root() const { return comm_->world().rank == 0; }
  void settle();
  // The first rank that failed tells all ranks why; throws what ends the run.
  void fail_together();
  void start_commit();
  void wait_for_commit();

  Communicator* comm_;
  ThreadPool* pool_;
  const ParameterState* state_;
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
