#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "optim/elementwise.h"
#include "settings/derived.h"
#include "settings/resolve.h"

namespace tessera {
namespace {

// The setting that keeps nodes from training on their own; "" if there is none.
std::string obstacle(const RunSpec& spec) {
  if (spec.machine.device != DeviceKind::kCpu) return fmt::format("device {}", spec.machine.device);
  if (spec.placement.optimizer_in_backward) return "optimizer_in_backward";
  if (spec.placement.fit) return "fit";
  if (spec.placement.optimizer_device != OffloadDevice::kNone)
    return fmt::format("offload_optimizer_device {}", spec.placement.optimizer_device);
  if (spec.placement.param_device != OffloadDevice::kNone)
    return fmt::format("offload_param_device {}", spec.placement.param_device);
  if (spec.saving.peer_snapshot_steps > 0)
    return fmt::format("peer_snapshot_steps {}", spec.saving.peer_snapshot_steps);
  if (spec.sharding.quantized_weights) return "zero_quantized_weights";
  if (spec.sharding.load_once == LoadOnce::kPerCluster) return "load_weights_once per_cluster";
  if (spec.sharding.gather_schedule == GatherChoice::kPerLayer) return "gather_schedule per_layer";
  return "";
}

}  // namespace

std::string stage_text(const RunSpec& spec) {
  const int64_t stage = spec.sharding.stage.value();
  const auto source = spec.sources.given.find("zero_stage");
  const bool is_fsdps = source != spec.sources.given.end() && source->second.origin == SettingOrigin::kFsdp;
  return is_fsdps ? fmt::format("{} ({})", stage, source->second.where) : std::to_string(stage);
}

// Settings for sharing work among ranks. None has an effect on a single rank.
void resolve_ranks(const FlagTable& table, int64_t world_size, RunSettings* spec) {
  constexpr int64_t kDefaultStage = 2;
  if (!spec->sharding.stage) spec->sharding.stage = world_size > 1 ? kDefaultStage : 0;
  if (spec->sharding.gather_schedule == GatherChoice::kPerLayer && *spec->sharding.stage != 3) {
    fail(ExitCode::kBadConfig,
         "gather_schedule per_layer needs zero_stage 3, found {}: below it every node keeps all weights",
         stage_text(*spec));
  }
  if (spec->sharding.load_once == LoadOnce::kPerCluster && *spec->sharding.stage == 0 && world_size > 1) {
    fail(ExitCode::kBadConfig,
         "load_weights_once per_cluster needs zero_stage 1 or more, found {}: every node then keeps the "
         "optimizer state of all weights and has to read them",
         stage_text(*spec));
  }
  const bool is_bf16 = spec->precision.dtype == DType::kBF16;
  if (spec->sharding.quantized_weights && !is_bf16) {
    fail(ExitCode::kBadConfig, "zero_quantized_weights needs dtype bfloat16, found {}",
         spec->precision.dtype_word());
  }
  if (spec->sharding.quantized_weights && *spec->sharding.stage == 0 && world_size > 1) {
    fail(ExitCode::kBadConfig,
         "zero_quantized_weights needs zero_stage 1 or more, found {}: every node then updates all weights "
         "itself",
         stage_text(*spec));
  }
  if (spec->sharding.grad_accum_dtype == DType::kBF16) {
    if (!is_bf16) {
      fail(ExitCode::kBadConfig, "grad_accum_dtype bfloat16 needs dtype bfloat16, found {}",
           spec->precision.dtype_word());
    }
    if (world_size == 1) {
      log_warning("grad_accum_dtype bfloat16 has no effect on one rank: gradients are added up in float32");
      spec->sharding.grad_accum_dtype = DType::kF32;  // the type that memory is planned with
    }
  }
  if (!spec->sharding.grad_accum_dtype) spec->sharding.grad_accum_dtype = DType::kF32;
  if (!spec->sharding.communication_dtype) spec->sharding.communication_dtype = spec->precision.dtype;
  if (!is_bf16 && spec->sharding.communication_dtype == DType::kBF16) {
    fail(ExitCode::kBadConfig, "communication_data_type bf16 needs dtype bfloat16, found {}",
         spec->precision.dtype_word());
  }
  if (world_size > 1) return;
  for (const char* name :
       {"zero_stage", "gather_schedule", "zero_quantized_weights", "zero_quantized_gradients",
        "load_weights_once", "ddp_timeout", "connections", "fabric", "interface"}) {
    constexpr int64_t kTrainersTimeout = 1800;
    const bool is_as_without =
        (name == std::string_view("zero_stage") && *spec->sharding.stage == 0) ||
        (name == std::string_view("ddp_timeout") && spec->network.timeout_s == kTrainersTimeout);
    if (table.is_set(name) && !is_as_without && !spec->sources.fsdp.sets.contains(name))
      log_warning("{} has no effect on one rank", name);
  }
  if (spec->sources.fsdp.is_on) log_warning("{} has no effect on one rank", spec->sources.fsdp.source);
}

void check_context_ranks(int64_t size, int64_t world_size) {
  if (world_size % size == 0) return;
  fail(ExitCode::kBadConfig, "context_parallel_size {}: expected a divisor of the number of ranks, found {}",
       size, count_of(world_size, "rank"));
}

void check_context(const RunSpec& spec) {
  const int64_t size = spec.sharding.context_parallel_size;
  if (size == 1) return;
  const auto refuse = [&](bool found, const std::string& what) {
    if (found) fail(ExitCode::kBadConfig, "context_parallel_size {} cannot be combined with {}", size, what);
  };
  refuse(spec.machine.device != DeviceKind::kCpu, fmt::format("device {}", spec.machine.device));
  refuse(spec.outer.sync_every > 0, fmt::format("sync_every {}", spec.outer.sync_every));
}

void check_outer(const FlagTable& table, const RunSpec& spec) {
  if (spec.outer.sync_every == 0) {
    warn_if_set(table,
                {"num_fragments", "fragment_sync_delay", "fragment_update_alpha", "outer_learning_rate",
                 "outer_momentum"},
                "sync_every is 0");
    return;
  }
  if (const std::string found = obstacle(spec); !found.empty())
    fail(ExitCode::kBadConfig, "sync_every cannot be combined with {}", found);
  if (!is_elementwise(state_tensors_of(spec.optimizer))) {
    fail(ExitCode::kBadConfig,
         "sync_every needs an optimizer that updates every element by itself, such as adamw_torch, found "
         "optim {}",
         spec.optimizer.form);
  }
  if (spec.outer.num_fragments > spec.outer.sync_every) {
    fail(ExitCode::kBadConfig, "num_fragments {} is more than sync_every {}: each has a step of its own",
         spec.outer.num_fragments, spec.outer.sync_every);
  }
  if (spec.outer.sync_delay * spec.outer.num_fragments >= spec.outer.sync_every) {
    fail(ExitCode::kBadConfig,
         "fragment_sync_delay {} must be less than sync_every {} / num_fragments {}: an exchange ends before "
         "the next one begins",
         spec.outer.sync_delay, spec.outer.sync_every, spec.outer.num_fragments);
  }
}

void check_device(const RunSpec& spec, int64_t world_size) {
  if (spec.machine.device == DeviceKind::kCpu) return;
  const auto refuse = [](bool condition, const std::string& setting, const std::string& advice) {
    if (condition) fail(ExitCode::kBadConfig, "{} is not available with device cuda: {}", setting, advice);
  };
  const bool parameters_on_host = spec.placement.param_device != OffloadDevice::kNone;
  constexpr const char* kKeepOnHost = "use offload_param_device cpu, with which the host keeps weights, too";
  refuse(world_size > 1 && !parameters_on_host, fmt::format("a job of {} ranks", world_size), kKeepOnHost);
  refuse(base_quantization_of(spec.base) != Quantization::kNone, "a quantised base",
         "weights beside adapters are bfloat16 there");
  refuse(spec.placement.fit, "fit", "leave it out");
  refuse(spec.placement.optimizer_in_backward && !parameters_on_host, "optimizer_in_backward", kKeepOnHost);
  refuse(spec.placement.optimizer_device == OffloadDevice::kNvme && !parameters_on_host,
         "offload_optimizer_device nvme", kKeepOnHost);
  refuse(spec.placement.offloads_inputs(), "gradient_checkpointing_mode offload", "use full or selective");
  refuse(spec.saving.peer_snapshot_steps > 0 && world_size == 1, "peer_snapshot_steps",
         "it protects runs of several ranks");
  refuse(!is_on_cards(state_tensors_of(spec.optimizer), spec.precision.dtype) &&
             !spec.placement.optimizer_is_on_host(),
         fmt::format("optim {}", spec.optimizer.form),
         "use adamw_torch, adamw_bf16 with bfloat16 weights, or offload_optimizer_device cpu, with which the "
         "processor updates the weights");
}

}  // namespace tessera
