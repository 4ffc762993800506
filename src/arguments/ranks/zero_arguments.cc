#include "arguments/ranks/zero_arguments.h"

#include "arguments/ranks/device_arguments.h"
#include "arguments/ranks/outer_arguments.h"
#include "arguments/state/offload_arguments.h"
#include "arguments/state/optimizer_arguments.h"
#include "base/divide_up.h"

namespace tessera {
namespace {

// State that is read long before it is used must not keep weights and inputs of layers, which the next layer
// waits for, from the disk that they share.
constexpr int64_t kStateShareOfQueue = 4;

AsyncFileSettings state_transfers(const TrainingArguments& args) {
  AsyncFileSettings transfers = transfer_settings(args);
  if (args.offload_param_device == OffloadDevice::kNvme || args.offloads_inputs()) {
    transfers.queue_depth = divide_up(transfers.queue_depth, kStateShareOfQueue);
  }
  return transfers;
}

std::optional<GradientCode> quantized_gradients_of(const TrainingArguments& args) {
  switch (args.zero_quantized_gradients) {
    case GradientQuantization::kInt8:
      return GradientCode::kInt8;
    case GradientQuantization::kInt4:
      return GradientCode::kInt4;
    case GradientQuantization::kNone:
      break;
  }
  return std::nullopt;
}

}  // namespace

ZeroSettings zero_settings_of(const TrainingArguments& args, const ModelConfig& config,
                              int64_t passes_per_step) {
  ZeroSettings zero;
  zero.stage = static_cast<int>(args.zero_stage.value_or(0));
  zero.schedule =
      args.gather_schedule == GatherChoice::kPerLayer ? GatherSchedule::kPerLayer : GatherSchedule::kPerStep;
  zero.passes_per_step = passes_per_step;
  zero.weight_dtype = args.dtype;
  zero.network_dtype = args.communication_data_type.value_or(zero.weight_dtype);
  zero.quantized_weights = args.zero_quantized_weights;
  zero.quantized_gradients = quantized_gradients_of(args);
  zero.gradient_dtype = args.accumulation_dtype();
  zero.max_live_elements = args.stage3_max_live_parameters;
  zero.prefetch_elements = args.prefetch_elements(config.hidden_size);
  zero.overlap = args.overlap_comm;
  zero.state_tensors = state_tensors_of(args);
  zero.outer = outer_settings_of(args);
  zero.optimizer_in_backward = args.optimizer_in_backward;
  zero.parameters_on_host = args.offload_param_device != OffloadDevice::kNone;
  zero.optimizer_on_host = optimizer_is_on_host(args);
  zero.computes_twice = args.computes_norm_first();
  if (args.offload_optimizer_device == OffloadDevice::kNvme) {
    zero.state_folder = {args.offload_dir, state_transfers(args)};
  }
  if (args.offload_param_device == OffloadDevice::kNvme) {
    (config.lora ? zero.frozen_folder : zero.weight_folder) = {args.offload_dir, transfer_settings(args)};
  }
  zero.persistence_threshold = args.persistence_threshold_elements(config.hidden_size);
  return zero;
}

std::vector<StateTensor> saved_tensors_of(const TrainingArguments& args, int num_nodes) {
  ZeroSettings zero;
  zero.state_tensors = state_tensors_of(args);
  zero.quantized_gradients = quantized_gradients_of(args);
  zero.outer = outer_settings_of(args);
  return saved_tensors(zero, num_nodes);
}

bool may_gather_per_layer(const TrainingArguments& args, int num_nodes) {
  return num_nodes > 1 && args.zero_stage == 3 && args.sync_every == 0 &&
         args.gather_schedule == GatherChoice::kAuto && args.pack_weights != AutoChoice::kAlways;
}

}  // namespace tessera
