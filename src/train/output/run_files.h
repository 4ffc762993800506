// The files of a run in output_dir: arguments, checkpoints, the finished model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/run_state.h"
#include "comm/communicator.h"
#include "model/trainable_model.h"
#include "platform/thread_pool.h"
#include "report/observer.h"
#include "settings/run_settings.h"
#include "shard/store_state.h"
#include "train/measure/network_meter.h"
#include "train/output/checkpoint_saver.h"
#include "train/output/model_writer.h"
#include "train/output/output_folder.h"

namespace tessera {

struct RunFilesOptions {
  ExportOptions export_options;
  int64_t snapshot_bytes = 0;  // WriteOptions
  bool output_is_shared = true;
  // The newest complete checkpoint of output_dir at the start; -1 = none.
  int64_t last_saved_step = -1;
};

class RunFiles {
 public:
  // Changes no file yet. Arguments passed by reference must outlive this.
  RunFiles(const RunSpec& spec, Communicator& comm, ThreadPool& pool, const TrainableModel& model,
           StoreState& state, NetworkMeter& meter, ObserverList& observers, const RunFilesOptions& options);

  // Opens output_dir: keeps the files of the run that continues from step `resumed_step`, or moves an earlier
  // run's aside. Rank 0 adds the files that report on steps to the observers.
  void open(std::optional<int64_t> resumed_step, const RunPlan& plan);

  // Collective: begins a checkpoint, after the one under way is complete. save_total_limit spares the
  // checkpoint of `best_step`; 0 = none.
  void save(const RunRecord& record, int64_t best_step);
  // Collective: waits for the one under way. `step`: the last one completed.
  void finish_checkpoint(int64_t step);
  // Tells the observer of a checkpoint that has been completed or has failed.
  void report_checkpoint();
  // Collective: saves and waits, unless the checkpoint of this step exists. Error(kIoError) if it cannot be
  // written.
  void save_before_stop(int64_t step, const std::function<RunRecord()>& record, int64_t best_step);
  // On rank 0, with save_total_limit 1 and no checkpoint under way: of the checkpoints only the best stays.
  void keep_only_best(int64_t best_step);
  // On rank 0: whether output_dir has the finished model, whatever trainer_state.json says.
  bool has_model() const { return model_writer_.has_written(spec_.output_dir); }
  // Collective: the finished model, then trainer_state.json. Where it cannot be written, the Error of rank 0
  // says what is left of the run.
  void write_model(int64_t step, const std::function<std::string()>& trainer_state);
  // Collective.
  void export_model(const std::filesystem::path& folder) { model_writer_.export_whole(folder); }

  // The source of the ranks' reports about the checkpoint under way after a step (CheckpointSaver).
  CheckpointSaver& saver() { return saver_; }
  // Seconds that a checkpoint of this rank takes, by the speed of the last one, the one under way included.
  double write_estimate_s() const;
  // Seconds until a checkpoint is complete, and for writing the finished model.
  double checkpoint_estimate_s() const { return time_to_write_s(checkpoint_bytes_); }
  double model_estimate_s() const { return time_to_write_s(model_bytes_); }
  // A checkpoint whose completion no line of metrics.jsonl has yet.
  std::optional<CheckpointUse> take_written();
  // On rank 0 the newest complete checkpoint of this run, "" if there is none.
  std::filesystem::path last_checkpoint() const;

 private:
  bool is_root() const { return comm_.world().rank == 0; }
  double time_to_write_s(double bytes) const;
  // Advice for messages: how to get the model of this last step, which could not be written.
  std::string way_to_model(int64_t step) const;
  CheckpointPlan checkpoint_plan(int64_t step) const;

  const RunSpec& spec_;
  Communicator& comm_;
  const TrainableModel& model_;
  NetworkMeter& meter_;
  ObserverList& observers_;
  StoreState& state_;
  ModelWriter model_writer_;
  // On rank 0, once opened.
  std::optional<OutputFolder> output_;
  std::vector<std::unique_ptr<TrainObserver>> sinks_;  // files that report on steps
  CheckpointSaver saver_;
  double checkpoint_bytes_ = 0, model_bytes_ = 0;  // of this rank
  std::optional<CheckpointUse> written_;
  int64_t last_saved_step_;         // known to rank 0
  std::string checkpoint_error_;    // of the last checkpoint, if it failed
  bool saves_before_stop_ = false;  // a checkpoint that fails now ends the run with its error
};

}  // namespace tessera
