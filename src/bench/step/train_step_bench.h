// A training step with real shapes and random weights: the speed of a training run, part by part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_line.h"
#include "bench/measure.h"
#include "bench/step/other_program.h"
#include "devices/make_ops.h"
#include "devices/measure/statistics.h"
#include "formats/huggingface/model_config.h"
#include "model/trainable_model.h"
#include "ops/cpu_ops.h"
#include "ops/device_peak.h"
#include "settings/choices.h"
#include "tensor/dtype.h"

namespace tessera {

struct TrainStepOptions {
  std::string name;  // of the preset that gives the shapes
  // Has the wanted num_hidden_layers; with `lora` full training takes turns; base_quantization applies to the
  // frozen weights.
  ModelConfig config;
  DType dtype = DType::kBF16;
  int64_t max_length = 512;                 // tokens per row
  int64_t micro_batch = 1;                  // rows
  int64_t gradient_accumulation_steps = 4;  // micro-batches per step
  bool gradient_checkpointing = false;
  AutoChoice merge_micro_batches = AutoChoice::kAuto;  // as in training
  bool pack_weights = true;                            // kept in packed form, repacked after every update
  bool with_head = false;  // embedding, final norm, LM head and loss; otherwise only the decoder layers

  int64_t step_rows() const { return micro_batch * gradient_accumulation_steps; }
  int64_t step_tokens() const { return step_rows() * max_length; }
};

// Another program's times for the same tokens; it takes a turn after each of our steps.
struct AgainstOther {
  std::string name;  // "PyTorch 1.13.1"
  Quartiles forward_backward_seconds;
  Quartiles optimizer_seconds;
  Quartiles ratio_forward_backward;  // its seconds / ours, paired: how many times faster we are
  Quartiles ratio_optimizer;
  Quartiles ratio_step;
};

struct TrainStepLine {
  TrainStepOptions options;
  std::string operations;       // what runs: Ops::description()
  std::string peak_name;        // "amx_bf16"
  int64_t pass_tokens = 0;      // through the model at once
  int64_t num_parameters = 0;   // trained
  Verification verification;    // of every operation in one step
  double step_tflop = 0;        // 10^12 operations per step, as counted by model/flops.h
  int64_t rounds = 0;           // steps measured
  Quartiles step_seconds;       // of a whole step; its parts follow
  Quartiles forward_seconds;    //
  Quartiles head_seconds;       // LM head, loss and their backward; 0 without head
  Quartiles backward_seconds;   //
  Quartiles optimizer_seconds;  // gradient norm and AdamW
  Quartiles tokens_per_second;  // of the whole step
  Quartiles tokens_per_second_forward_backward;
  Quartiles peak;  // TFLOPS, measured around every pass
  Quartiles mfu;   // of the whole step: its FLOP per second over the peak of the same step
  Quartiles mfu_forward_backward;
  std::vector<std::pair<std::string, double>> operation_shares;  // share of the step time, largest first
  int64_t predicted_bytes = 0;  // peak resident memory of the process, or of a device
  int64_t measured_bytes = 0;   // VmHWM; 0 if the system cannot measure it for this line alone
  std::optional<AgainstOther> against;
  // For adapters: seconds of the same step with all weights trained / ours, paired.
  std::optional<Quartiles> ratio_full_forward_backward, ratio_full_step;
};

// Where the step is computed.
struct StepDevice {
  OpsFactory make = make_cpu_ops;
  int64_t peak_size = DevicePeakMeter::kSize;  // of products, on a device with memory of its own
};

// Error(kBadConfig) with figures, before anything is allocated, if the step does not fit in memory. `other`
// may be null; its forward_backward must process as many tokens as a whole step here. On a device with memory
// of its own, times are the device's and memory is its own; weights there are not quantized, and nothing is
// verified.
TrainStepLine run_train_step(const TrainStepOptions& options, const MeasureOptions& measure,
                             OtherProgram* other, ThreadPool& pool, const StepDevice& on = {});

std::string train_step_table(const TrainStepLine& line);

// One JSON object without line breaks: benchmark "train-step", the options under their command-line names,
// and the members of TrainStepLine under their names.
std::string train_step_json(const TrainStepLine& line, int64_t num_threads);

}  // namespace tessera
