// The state a run resumes from: a checkpoint, or state that the ranks of an earlier start left in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_reader.h"
#include "comm/communicator.h"
#include "data/rows/batch_plan.h"
#include "model/trainable_model.h"
#include "platform/thread_pool.h"
#include "report/observer.h"
#include "report/trainer_state.h"
#include "settings/run_settings.h"
#include "shard/store_state.h"
#include "train/recovery/peer_snapshots.h"
#include "train/recovery/training_record.h"

namespace tessera {

class RunResume {
 public:
  // Collective: chooses by resume_from_checkpoint. `snapshots` is nullptr without peer snapshots.
  // Error(kNoInput, kBadData, kIoError) if the requested state cannot be used. Arguments passed by reference
  // must outlive this.
  RunResume(const RunSpec& spec, Communicator& comm, PeerSnapshots* snapshots);

  // False: the run starts from the model's weights, and nothing below may be called.
  explicit operator bool() const { return point_.has_value(); }
  const TrainingRecord& record() const { return point_->record; }
  const std::vector<LogEntry>& log_history() const { return point_->log_history; }
  // The run continues in the folder that it was started in.
  bool is_in_place() const;
  // Where the run saved its checkpoints so far.
  std::filesystem::path checkpoint_parent() const;
  // The folder of the checkpoint of a step; the one that the run resumes from may have any name.
  std::filesystem::path checkpoint_folder(int64_t step) const;
  // Step of the newest complete checkpoint in output_dir that this rank knows of; -1 = none.
  int64_t last_saved_step() const;

  // The rows of the steps to come: those of the resumed run, cut for the current ranks. Changes *now
  // accordingly. Error(kBadConfig) if this is another run.
  BatchPlanOptions continue_batches(const BatchPlanOptions& options, TrainingRecord* now) const;
  // Error(kBadConfig) if the run trained adapters of another model.
  void check_base(const TrainingRecord& now) const;
  // Collective: reads the state. A checkpoint that turns out to be damaged gives way to the one before it,
  // unless it was asked for by name.
  void load(const TrainableModel& model, StoreState& state, ThreadPool& pool, TrainObserver& observer);
  // Tells the observer from where the run resumes, and with which other settings.
  void report(const TrainingRecord& now, TrainObserver& observer) const;

 private:
  struct Point {
    std::optional<CheckpointReader> reader;  // or
    std::optional<HeldState> held;           // in memory
    TrainingRecord record;
    std::vector<LogEntry> log_history;

    std::string origin() const;  // for messages
  };

  static Point open(const std::filesystem::path& folder);
  // Collective: the newest usable checkpoint of output_dir below step `before`. After a restart of a launch
  // that was given a checkpoint by name, only checkpoints of that launch count.
  std::optional<std::filesystem::path> newest_checkpoint(int64_t before) const;
  bool is_of_this_launch(const CheckpointReader& reader) const;
  // Collective: true if the state in memory is used.
  bool choose_memory(const std::optional<std::filesystem::path>& newest);
  // Rather than start afresh, and lose what a disk or a person may bring back, auto ends with an error.
  void refuse_unusable_checkpoints() const;
  // Says so if the checkpoint has errors of gradients that this run, with these tensors, does not send along.
  void report_left_out(StateTensors tensors) const;
  // Instead of one that is damaged.
  std::optional<std::filesystem::path> older_checkpoint() const;

  const RunSpec& spec_;
  Communicator& comm_;
  PeerSnapshots* snapshots_;
  std::optional<Point> point_;
  int64_t last_saved_step_ = -1;  // apart from a state in memory
};

}  // namespace tessera
