// A DeepSpeed configuration file, parsed as DeepSpeed parses it: what the file says, not yet what it means
// for a run. docs/deepspeed.md lists every key and how it is treated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/deepspeed/deepspeed_keys.h"
#include "formats/json.h"
#include "tensor/dtype.h"

namespace tessera {

// A key that may be absent, "auto" (the run's arguments decide) or a value.
template <typename T>
struct DeepSpeedSetting {
  bool is_auto = false;
  std::optional<T> value;

  bool is_absent() const { return !is_auto && !value; }
};

// Adam and AdamW are both AdamW unless decoupled_weight_decay is false.
enum class DeepSpeedOptimizerType { kAdam, kAdamW, kLion, kMuon };

struct DeepSpeedOptimizer {
  DeepSpeedOptimizerType type = DeepSpeedOptimizerType::kAdamW;
  std::string type_name;              // as DeepSpeed spells it
  DeepSpeedSetting<double> momentum;  // of Muon
  DeepSpeedSetting<double> lr;
  DeepSpeedSetting<std::vector<double>> betas;  // two values
  DeepSpeedSetting<double> eps;
  DeepSpeedSetting<double> weight_decay;
  bool torch_adam = false;
  bool decoupled_weight_decay = true;
};

struct DeepSpeedScheduler {
  std::string type;  // as DeepSpeed spells it
  Json params = Json::object();
};

struct DeepSpeedConfig {
  std::string origin;  // for messages
  DeepSpeedSetting<int64_t> train_batch_size;
  std::optional<int64_t> sequence_parallel_size;
  DeepSpeedSetting<int64_t> train_micro_batch_size_per_gpu;
  DeepSpeedSetting<int64_t> gradient_accumulation_steps;
  DeepSpeedSetting<double> gradient_clipping;
  DeepSpeedSetting<bool> bf16;        // bf16.enabled; absent without that section
  std::optional<int64_t> zero_stage;  // absent: 0
  // In elements; for "auto" Hugging Face fills in 0.9 hidden^2 (bucket size) and 10 hidden (threshold).
  std::optional<int64_t> stage3_max_live_parameters;
  DeepSpeedSetting<int64_t> stage3_prefetch_bucket_size;
  DeepSpeedSetting<int64_t> stage3_param_persistence_threshold;
  std::optional<bool> overlap_comm;
  bool compute_grad_norm = true;
  std::optional<bool> zero_quantized_weights;
  std::optional<bool> zero_quantized_gradients;
  // zero_optimization.offload_optimizer and offload_param; the path and aio if a device is nvme.
  std::optional<std::string> offload_optimizer_device;  // none, cpu or nvme
  std::optional<std::string> offload_optimizer_nvme_path;
  std::optional<std::string> offload_param_device;
  std::optional<std::string> offload_param_nvme_path;
  std::optional<int64_t> aio_block_size;
  std::optional<int64_t> aio_queue_depth;
  std::optional<DType> grad_accum_dtype;         // BF16 or F32
  std::optional<DType> communication_data_type;  // BF16 or F32
  bool gradients_are_summed = false;             // gradient_allreduce_op is sum, not mean
  std::optional<DeepSpeedOptimizer> optimizer;
  std::optional<DeepSpeedScheduler> scheduler;
  // Folders of the monitors that are on: output_path/job_name.
  std::optional<std::string> tensorboard_dir;
  std::optional<std::string> csv_dir;
  std::vector<DeepSpeedNote> notes;
};

// Errors are kBadConfig: "FILE: KEY: expected ..., found ...; what to do"; syntax errors name the line
// instead.
DeepSpeedConfig parse_deepspeed_config(std::string_view text, const std::string& origin);

// The keys of a configuration as they are written, of any kind that read_deepspeed_config() takes.
Json read_deepspeed_keys(const std::string& argument);

// `argument` is a file, the configuration itself (starting with '{'), or the configuration in base64
// (standard or URL-safe, with or without padding). kNoInput if it is none of these.
DeepSpeedConfig read_deepspeed_config(const std::string& argument);

}  // namespace tessera
