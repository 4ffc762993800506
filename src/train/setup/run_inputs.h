// What a run opens before it is planned: its model's shape, its data, and the state it resumes from.
#pragma once

#include <memory>
#include <optional>

#include "base/clock.h"
#include "comm/communicator.h"
#include "context/context_rank.h"
#include "data/rows/batch_plan.h"
#include "devices/make_ops.h"
#include "formats/safetensors/safetensors.h"
#include "io/disk_rate.h"
#include "model/trainable_model.h"
#include "ops/clocked_ops.h"
#include "optim/schedule.h"
#include "plan/run_planner.h"
#include "plan/step_actions.h"
#include "platform/thread_pool.h"
#include "report/observer.h"
#include "settings/run_settings.h"
#include "train/evaluation/choices.h"
#include "train/measure/job_peak.h"
#include "train/recovery/peer_snapshots.h"
#include "train/recovery/run_resume.h"
#include "train/setup/training_data.h"
#include "train/step/step_rows.h"

namespace tessera {

struct RunInputs {
  // Collective: opens model and data, and plans the steps (run_planning.h). Parameters as the Trainer's.
  RunInputs(const RunSpec& spec, ThreadPool& thread_pool, TrainObserver& observer, Communicator& communicator,
            const OpsFactory& make);
  RunInputs(const RunInputs&) = delete;
  RunInputs& operator=(const RunInputs&) = delete;

  const World& world() const { return comm.world(); }
  bool is_root() const { return world().rank == 0; }
  Ops& model_ops() { return context ? static_cast<Ops&>(context->ops()) : *clocked_ops; }
  ContextRank* context_rank() { return context ? &*context : nullptr; }
  // Before weights are loaded: the weights beside adapters get this form.
  void set_base_quantization(Quantization quantization);

  Stopwatch since_start;
  RunSpec asked;  // as it was resolved; RunSetup::spec is that of the run
  ThreadPool& pool;
  Communicator& comm;
  ObserverList observers;        // on ranks other than 0 only one for every rank
  TrainingRecord record;         // of this run, without its progress
  bool output_is_shared = true;  // by all nodes

  std::unique_ptr<Ops> ops;
  std::optional<ClockedOps> clocked_ops;
  std::optional<ContextRank> context;  // with ranks that share rows
  std::unique_ptr<TrainableModel> model;
  std::optional<SafetensorsModel> model_file;  // until the weights are loaded

  std::optional<TrainingData> data;
  std::optional<ChoiceSet> choices;
  BatchPlanOptions batch;
  RowLengths lengths;
  std::optional<StepRows> rows;
  std::unique_ptr<Schedule> schedule;
  std::optional<ActionSchedule> actions;
  RunPlan plan;
  std::optional<JobPeak> peak;
  std::optional<DiskRate> disk_rate;  // on rank 0, of offload_dir

  std::optional<PeerSnapshots> snapshots;
  std::optional<RunResume> resume;

 private:
  ResumedRows resumed_rows() const;
  void open_model(const OpsFactory& make);
  void open_choices();
};

}  // namespace tessera
