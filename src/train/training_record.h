// What a checkpoint keeps of a run beside weights and optimizer: where it stands, what decides its data, and
// how it was started. The "run" object of the checkpoint's manifest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/batch_plan.h"
#include "data/dataset.h"
#include "formats/json.h"
#include "formats/model_config.h"
#include "optim/schedule.h"
#include "train/loss_spike.h"
#include "train/trainer_state.h"

namespace tessera {

// What the rows of step k follow from.
struct DataRecord {
  int64_t num_rows = 0;
  int64_t num_tokens = 0;
  std::string fingerprint;  // of files, settings and tokenizer: the name of the cache file
  int64_t max_length = 0;
  std::string packing;  // "none", "isolated", "joined"
  bool shuffle = true;
  uint64_t seed = 0;  // of the order
  bool drop_last = false;
  // Of the ranks that the run began with; they need not be those of today.
  int64_t micro_batch_size = 0;
  int64_t gradient_accumulation_steps = 0;
  int64_t world_size = 0;
  std::optional<int64_t> global_batch_size;

  BatchPlanOptions batch_options() const;
  bool operator==(const DataRecord&) const = default;
};
DataRecord data_record(const Dataset& dataset, int64_t max_length, Packing packing,
                       const BatchPlanOptions& options);

// Sums that go on; TrainerState has the rest.
struct ProgressRecord {
  int64_t step = 0;  // finished
  double epoch = 0;
  int64_t num_input_tokens_seen = 0;
  double total_flos = 0;
  double total_loss = 0;      // of all updates
  double loss_since_log = 0;  // of losses_since_log steps, those since the last log entry
  int64_t losses_since_log = 0;
  int64_t num_updates = 0;  // of the optimizer: steps that were not skipped
  int64_t num_skipped_in_a_row = 0;
};

struct TrainingRecord {
  Json arguments;         // training_args.json as they were given
  std::string launch_id;  // TrainingArguments::launch_id; "" = unknown
  int64_t world_size = 1;
  Json model;  // model_shape()
  DataRecord data;
  ProgressRecord progress;
  std::optional<PlateauState> plateau;
  LossSpikeHistory loss_spikes;
};

// The fields of config.json that the numbers of a run depend on.
Json model_shape(const ModelConfig& config);

std::string training_record_json(const TrainingRecord& record);
// Error(kBadData) names `origin`, the field, what was expected and found.
TrainingRecord parse_training_record(const std::string& text, const std::string& origin);

// Something that was set otherwise when the checkpoint was written; texts as JSON.
struct Difference {
  std::string name;
  std::string then;
  std::string now;
};

// What a run cannot be resumed with: another model, other data, another order of it, another number of rows
// in a step. Batch sizes and ranks may differ as long as the rows of a step stay.
std::vector<Difference> forbidden_differences(const TrainingRecord& then, const TrainingRecord& now);
// What it can be, with effect on the numbers.
std::vector<Difference> allowed_differences(const TrainingRecord& then, const TrainingRecord& now);
// "max_steps 100 -> 200, learning_rate 0.001 -> 0.002"
std::string differences_text(const std::vector<Difference>& differences);

// The arguments that make up the batch are those of then: where they ask for other rows, it is because of the
// number of ranks, and the rows of then are kept.
bool same_batch_arguments(const TrainingRecord& then, const TrainingRecord& now);

// The order of the rows of `then`, cut for `micro_batch_size` and `world_size` of now where these differ.
BatchPlanOptions resumed_batch_options(const DataRecord& then, const BatchPlanOptions& now);

}  // namespace tessera
