#include "settings/ranks/zero_settings.h"

#include "base/divide_up.h"
#include "settings/ranks/device_settings.h"
#include "settings/ranks/outer_settings.h"

namespace tessera {
namespace {

// State that is read long before it is used must not keep weights and inputs of layers, which the next layer
// waits for, from the disk that they share.
constexpr int64_t kStateShareOfQueue = 4;

AsyncFileSettings state_transfers(const RunSpec& args) {
  AsyncFileSettings transfers = args.placement.transfers;
  if (args.placement.param_device == OffloadDevice::kNvme || args.placement.offloads_inputs()) {
    transfers.queue_depth = divide_up(transfers.queue_depth, kStateShareOfQueue);
  }
  return transfers;
}

}  // namespace

ZeroSettings zero_settings_of(const RunSpec& args, const ModelConfig& config, int64_t passes_per_step) {
  ZeroSettings zero;
  zero.stage = static_cast<int>(args.sharding.stage.value_or(0));
  zero.schedule = args.sharding.gather_schedule == GatherChoice::kPerLayer ? GatherSchedule::kPerLayer
                                                                           : GatherSchedule::kPerStep;
  zero.passes_per_step = passes_per_step;
  zero.weight_dtype = args.precision.dtype;
  zero.network_dtype = args.sharding.communication_dtype.value_or(zero.weight_dtype);
  zero.quantized_weights = args.sharding.quantized_weights;
  zero.quantized_gradients = args.sharding.quantized_gradients;
  zero.gradient_dtype = args.sharding.accumulation_dtype();
  zero.max_live_elements = args.sharding.max_live_parameters;
  zero.prefetch_elements = args.sharding.prefetch_elements(config.hidden_size);
  zero.overlap = args.sharding.overlap_comm;
  zero.state_tensors = state_tensors_of(args.optimizer);
  zero.outer = outer_settings_of(args);
  zero.optimizer_in_backward = args.placement.optimizer_in_backward;
  zero.parameters_on_host = args.placement.param_device != OffloadDevice::kNone;
  zero.optimizer_on_host = optimizer_is_on_host(args);
  zero.computes_twice = args.computes_norm_first();
  if (args.placement.optimizer_device == OffloadDevice::kNvme) {
    zero.state_folder = {args.placement.offload_dir, state_transfers(args)};
  }
  if (args.placement.param_device == OffloadDevice::kNvme) {
    (config.lora ? zero.frozen_folder : zero.weight_folder) = {args.placement.offload_dir,
                                                               args.placement.transfers};
  }
  zero.persistence_threshold = args.sharding.persistence_threshold_elements(config.hidden_size);
  return zero;
}

std::vector<StateTensor> saved_tensors_of(const RunSpec& args, int num_nodes) {
  ZeroSettings zero;
  zero.state_tensors = state_tensors_of(args.optimizer);
  zero.quantized_gradients = args.sharding.quantized_gradients;
  zero.outer = outer_settings_of(args);
  return saved_tensors(zero, num_nodes);
}

bool may_gather_per_layer(const RunSpec& args, int num_nodes) {
  return num_nodes > 1 && args.sharding.stage == 3 && args.outer.sync_every == 0 &&
         args.sharding.gather_schedule == GatherChoice::kAuto &&
         args.placement.pack_weights != AutoChoice::kAlways;
}

}  // namespace tessera
