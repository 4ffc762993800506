// The part of a checkpoint that describes the run besides weights and optimizer: its progress, what
// determines its data, and how it was started. Stored as the "run" object of the checkpoint's manifest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/rows/batch_plan.h"
#include "formats/huggingface/model_config.h"
#include "formats/json.h"
#include "optim/schedule.h"
#include "report/progress.h"
#include "weights/value_sums.h"

namespace tessera {

// Everything that determines the rows of step k.
struct DataRecord {
  int64_t num_rows = 0;
  int64_t num_tokens = 0;
  std::string fingerprint;  // of files, settings and tokenizer: the name of the cache file
  int64_t max_length = 0;
  std::string packing;  // "none", "isolated", "joined", "bfd", "bfd_split", "wrapped", ...
  bool shuffle = true;
  uint64_t seed = 0;          // of the row order
  std::string sampling = {};  // other settings that decide it, "" = none
  bool drop_last = false;
  bool splits_documents = false;  // rows were held out before they were packed
  // For the ranks the run began with, which may differ from the current ones.
  int64_t micro_batch_size = 0;
  int64_t gradient_accumulation_steps = 0;
  int64_t world_size = 0;
  std::optional<int64_t> global_batch_size;

  BatchPlanOptions batch_options() const;
  bool operator==(const DataRecord&) const = default;
};
DataRecord data_record(const Dataset& dataset, int64_t max_length, Packing packing,
                       const BatchPlanOptions& options);

struct TrainingRecord {
  Json arguments;         // as in training_args.json
  std::string launch_id;  // RunSpec::launch_id; "" = unknown
  int64_t world_size = 1;
  Json model;                          // model_shape()
  std::optional<ValueSums> base = {};  // of the model beside adapters
  DataRecord data;
  Progress progress;
};

// The fields of config.json and adapter_config.json that the numbers of a run depend on.
Json model_shape(const ModelConfig& config);

std::string training_record_json(const TrainingRecord& record);
// Error(kBadData) names `origin`, the field, what was expected and found.
TrainingRecord parse_training_record(const std::string& text, const std::string& origin);

// A setting that differs from the checkpoint's; values as JSON text.
struct Difference {
  std::string name;
  std::string then;
  std::string now;
};

// Differences that prevent resuming: another model, other data or data order, another number of rows per
// step. Batch sizes and ranks may differ if the rows per step stay the same.
std::vector<Difference> forbidden_differences(const TrainingRecord& then, const TrainingRecord& now);
// Differences that are allowed but change the numbers.
std::vector<Difference> allowed_differences(const TrainingRecord& then, const TrainingRecord& now);
// "max_steps 100 -> 200, learning_rate 0.001 -> 0.002"
std::string differences_text(const std::vector<Difference>& differences);

// True if the batch arguments are those of the checkpoint: if the rows per step differ nevertheless, that is
// due to the number of ranks, and the checkpoint's rows are kept.
bool same_batch_arguments(const TrainingRecord& then, const TrainingRecord& now);

// The row order of `then`, divided by the current `micro_batch_size` and `world_size` if these differ.
BatchPlanOptions resumed_batch_options(const DataRecord& then, const BatchPlanOptions& now);

}  // namespace tessera
