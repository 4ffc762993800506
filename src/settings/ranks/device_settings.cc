#include "settings/ranks/device_settings.h"

#include "base/error.h"
#include "optim/elementwise.h"
#include "settings/state/quantization_settings.h"

namespace tessera {

bool optimizer_is_on_host(const RunSpec& args) {
  return args.placement.optimizer_device != OffloadDevice::kNone ||
         args.placement.param_device != OffloadDevice::kNone;
}

void check_device(const RunSpec& args, int64_t world_size) {
  if (args.machine.device == DeviceKind::kCpu) return;
  const auto refuse = [](bool condition, const std::string& setting, const std::string& advice) {
    if (condition) fail(ExitCode::kBadConfig, "{} is not available with device cuda: {}", setting, advice);
  };
  const bool parameters_on_host = args.placement.param_device != OffloadDevice::kNone;
  constexpr const char* kKeepOnHost = "use offload_param_device cpu, with which the host keeps weights, too";
  refuse(world_size > 1 && !parameters_on_host, fmt::format("a job of {} ranks", world_size), kKeepOnHost);
  refuse(base_quantization_of(args) != Quantization::kNone, "a quantised base",
         "weights beside adapters are bfloat16 there");
  refuse(args.placement.fit, "fit", "leave it out");
  refuse(args.placement.optimizer_in_backward && !parameters_on_host, "optimizer_in_backward", kKeepOnHost);
  refuse(args.placement.optimizer_device == OffloadDevice::kNvme && !parameters_on_host,
         "offload_optimizer_device nvme", kKeepOnHost);
  refuse(args.placement.offloads_inputs(), "gradient_checkpointing_mode offload", "use full or selective");
  refuse(args.saving.peer_snapshot_steps > 0 && world_size == 1, "peer_snapshot_steps",
         "it protects runs of several ranks");
  refuse(!is_on_cards(state_tensors_of(args.optimizer), args.precision.dtype) && !optimizer_is_on_host(args),
         fmt::format("optim {}", args.optimizer.form),
         "use adamw_torch, adamw_bf16 with bfloat16 weights, or offload_optimizer_device cpu, with which the "
         "processor updates the weights");
}

}  // namespace tessera
