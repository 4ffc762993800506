// The accuracy of plans: step time (forecast/time) and memory of real runs, measured in turn with the inputs
// of the prediction.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "devices/measure/statistics.h"
#include "forecast/time/measured_costs.h"
#include "forecast/time/step_time.h"
#include "formats/huggingface/model_config.h"
#include "platform/memory_info.h"

namespace tessera {

struct PlanCase {
  std::string name;  // of the preset
  ModelConfig config;
  int64_t max_length = 512;
  int64_t micro_batch = 1;
  int64_t gradient_accumulation_steps = 1;
  int num_ranks = 1;
  bool gradient_checkpointing = false;
  std::string form;                                           // in tables; "" = none
  std::vector<std::pair<std::string, std::string>> settings;  // of the form, as flags
};

struct PlanBenchOptions {
  std::filesystem::path program;  // tessera, for the runs
  std::filesystem::path folder;   // for models, data and output
  int64_t rounds = 3;             // of a prediction and a run
  double seconds = 5;             // of steps in a run, about
  int64_t num_threads = 2;        // of all ranks together
  ProportionalMemory baseline;    // of this process at its start, which a rank has too
};

struct PlanLine {
  PlanCase run;
  int64_t num_parameters = 0;
  int64_t num_threads = 0;  // of a rank
  StepInputs inputs;
  double rates_ratio = 0;  // like ratio, by the machine's rates (measured_rates()) instead of its operations
  // Medians, part by part. In a measured run, local_s is waiting for other ranks, other_s has the sums of
  // their gradients, and optimizer_s the update's wait for the disk.
  StepTime predicted, measured;
  Quartiles step_s;             // measured: medians of a run's steps
  Quartiles ratio;              // predicted over measured of the same round
  int64_t predicted_bytes = 0;  // of the node
  int64_t measured_bytes = 0;
  std::vector<std::string> notes;  // of MeasuredCosts
};

// Writes a model with random weights and rows of random tokens, then in each round predicts and trains, in
// processes of their own, as a user would. Error(kIoError) with its output if a run fails.
PlanLine run_plan_case(const PlanCase& run, const PlanBenchOptions& options);

// Lines of at most 80 columns; c: with activation checkpointing.
std::string plan_table_header();
std::string plan_table_row(const PlanLine& line);
// One JSON object without line breaks.
std::string plan_json(const PlanLine& line);

}  // namespace tessera
