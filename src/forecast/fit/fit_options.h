// The memory, disk space and time of every candidate (candidate.h): which ones fit, and which to take.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "forecast/fit/candidate.h"
#include "forecast/forecast.h"
#include "forecast/time/step_time.h"
#include "ops/cpu_ops.h"
#include "plan/run_planner.h"

namespace tessera {

struct FitRequest {
  explicit FitRequest(const RunSpec& resolved) : spec(resolved) {}

  RunSpec spec;
  ModelConfig config;
  BatchPlanOptions batch;
  RowLengths data;
  int64_t mean_row_tokens = 1024;  // decides the time
  MachineResources machine;        // its free_bytes are the limit of memory
  int64_t num_threads = 1;         // of a rank
  OpsFactory ops = make_cpu_ops;   // what computes
  MachineRates rates;              // of a node
  int64_t free_disk_bytes = 0;     // of a node, in offload_dir
  bool holds_model = true;         // the finished model goes to the same disk

  int world_size() const { return machine.num_nodes * machine.local_world_size; }
};

// A candidate with its memory, disk space and time. It fits if it needs no more than there is.
struct FitOption : NamedCandidate {
  int64_t memory_bytes = 0;          // of a node, with what its ranks have before the model
  int64_t disk_bytes = 0;            // of a node, in offload_dir
  int64_t discarded_disk_bytes = 0;  // of them, before the finished model is written
  bool fits_memory = false;
  bool fits_disk = false;  // with the finished model
  StepTime time;

  bool fits() const { return fits_memory && fits_disk; }
  // Disk bytes including the finished model on the same disk.
  int64_t disk_bytes_with(int64_t model_bytes) const {
    return disk_bytes + model_bytes - std::min(discarded_disk_bytes, model_bytes);
  }
};

struct FitOptions {
  explicit FitOptions(const RunSpec& asked) : spec(asked) {}

  RunSpec spec;
  int64_t memory_bytes = 0;  // there is for a node, in both
  int64_t free_disk_bytes = 0;
  double disk_gb_per_s = 0;
  int64_t model_bytes = 0;       // of the finished model, on the same disk; 0: it is elsewhere
  int64_t checkpoint_bytes = 0;  // of each checkpoint, for which a run needs no room to begin
  std::vector<FitOption> all;    // options that other settings allow, in their order
  // The option to take: among those that fit, the ones that change the numbers least; among these the
  // fastest, and the first of equally fast ones.
  std::optional<size_t> best;
  // The fastest option that fits, or one within about 1 % of it that changes the numbers less.
  std::optional<size_t> fastest;

  // The one of the two that fit_choice asks for.
  std::optional<size_t> taken() const {
    return spec.placement.fit_choice == FitChoice::kFastest ? fastest : best;
  }
  // The options that fit and that no other beats in speed, exactness and memory (a tenth less memory is not
  // worth any time), the fastest first. The best one is among them.
  std::vector<size_t> worth_having() const;
  // Options that do not fit, would be faster than the best one, and change the numbers no more. If there is
  // no best one, the options with the least memory first.
  std::vector<size_t> out_of_reach() const;
};

// For machines that need not exist: every row has as many tokens as the longest of the job for memory, and
// the mean for time. `cluster` has rates.
FitRequest fit_request(const RunSpec& spec, const ModelConfig& config, const ClusterShape& cluster,
                       int64_t num_threads, const JobSize& job, int64_t free_disk_bytes);

FitOptions fit_options(const FitRequest& request);
// Options with adapters (LoRA) instead of all weights; nullopt if `request` has them or its settings
// contradict them.
std::optional<FitOptions> lora_fit_options(const FitRequest& request);

// "--optim adamw_8bit --gradient_checkpointing (17.1 GiB of memory, 64.2 GiB of disk)".
std::string option_text(const FitOptions& options, size_t option);
// Describes the choice and its reason; at least one option fits.
std::string choice_text(const FitOptions& options);
// Explains why nothing fits and what would; `lora` has the options for adapters.
std::string fit_refusal(const FitOptions& options, const std::optional<FitOptions>& lora);
// For a run that does not fit: "; --fit would take ...", or adapters; "" if nothing fits.
std::string fit_advice(const FitRequest& request);

// Lines of at most 80 columns.
std::string fit_text(const FitOptions& options);
// A JSON object with all options: sizes in bytes, times in seconds; indent 2, trailing newline.
std::string fit_json(const FitOptions& options);

}  // namespace tessera
