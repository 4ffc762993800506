#include <array>
#include <filesystem>
#include <tuple>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/huggingface/lora_config.h"
#include "settings/derived.h"
#include "settings/resolve.h"

namespace tessera {
namespace {

// Settings that an adapter's own configuration decides.
constexpr std::array kAdapterFlags = {
    "lora_rank",    "lora_alpha",    "lora_dropout",    "lora_target",         "use_rslora",
    "rank_pattern", "alpha_pattern", "exclude_modules", "layers_to_transform", "layers_pattern"};

}  // namespace

// bf16 is another spelling of dtype: true is bfloat16, false float32, as in Hugging Face.
void resolve_dtype(const FlagTable& table, PrecisionSpec* precision) {
  if (precision->bf16) {
    const bool contradicts = table.is_set("dtype") && *precision->bf16 != (precision->dtype == DType::kBF16);
    if (contradicts) {
      fail(ExitCode::kBadConfig, "bf16 {} contradicts dtype {}: give one of them", *precision->bf16,
           precision->dtype_word());
    }
    precision->dtype = *precision->bf16 ? DType::kBF16 : DType::kF32;
  }
  precision->bf16 = precision->dtype == DType::kBF16;
  if (precision->bf16_full_eval && !*precision->bf16) {
    fail(ExitCode::kBadConfig,
         "bf16_full_eval true contradicts dtype float32: evaluation runs in the training dtype");
  }
  if (!precision->save_dtype) precision->save_dtype = precision->dtype;
}

void check_checkpointing(const FlagTable& table, const PlacementSpec& placement) {
  if (placement.gradient_checkpointing || placement.fit) return;
  warn_if_set(table, {"gradient_checkpointing_mode"}, "gradient_checkpointing is false");
}

// Gradients of a group are gone once it is updated: several passes cannot add to them, nor can what is known
// only after the step prevent the update.
void resolve_optimizer_in_backward(const FlagTable& table, int64_t world_size, RunSettings* spec) {
  if (!spec->placement.optimizer_in_backward) {
    if (spec->clipping.mode != ClipMode::kGlobal) {
      fail(ExitCode::kBadConfig, "clip_mode {} needs optimizer_in_backward: otherwise clipping is global",
           spec->clipping.mode);
    }
    return;
  }
  if (world_size > 1 && *spec->sharding.stage < 2) {
    fail(ExitCode::kBadConfig,
         "optimizer_in_backward on several ranks needs zero_stage 2 or 3, which divide gradients among them, "
         "found {}",
         stage_text(*spec));
  }
  if (world_size > 1 && spec->clipping.mode == ClipMode::kLayer) {
    fail(ExitCode::kBadConfig,
         "clip_mode layer needs one rank, found {}: on several no rank has the gradients of a whole layer; "
         "choose global or previous",
         world_size);
  }
  if (spec->placement.merge_micro_batches == AutoChoice::kNever) {
    fail(ExitCode::kBadConfig,
         "optimizer_in_backward contradicts merge_micro_batches never: a layer is updated once all "
         "micro-batches of the step have gone through it");
  }
  spec->placement.merge_micro_batches = AutoChoice::kAlways;
  if (spec->clipping.max_norm == 0) warn_if_set(table, {"clip_mode"}, "max_grad_norm is 0");
  if (spec->computes_norm_first()) return;
  const std::string needs = spec->guards.replay_check_steps > 0 ? "replay_check_steps"
                            : spec->guards.loss_spike_policy != LossSpikePolicy::kWarn
                                ? fmt::format("loss_spike_policy {}", spec->guards.loss_spike_policy)
                                : "";
  if (!needs.empty()) {
    fail(ExitCode::kBadConfig,
         "{} cannot keep optimizer_in_backward from updating: it needs clip_mode global with max_grad_norm "
         "above 0, which computes a step before it updates, found clip_mode {} and max_grad_norm {}",
         needs, spec->clipping.mode, spec->clipping.max_norm);
  }
}

void resolve_offload(const FlagTable& table, int64_t world_size, RunSettings* spec) {
  if (spec->placement.transfers.block_bytes % kDirectAlignment != 0) {
    fail(ExitCode::kBadConfig, "aio_block_size: expected a multiple of {}, found {}", kDirectAlignment,
         spec->placement.transfers.block_bytes);
  }
  const bool has_weights = spec->placement.param_device == OffloadDevice::kNvme;
  const bool is_lora = spec->lora.finetuning_type == FinetuningType::kLora;
  if (has_weights && !is_lora && !spec->placement.optimizer_in_backward) {
    fail(ExitCode::kBadConfig,
         "offload_param_device nvme needs optimizer_in_backward: otherwise the update after the passes reads "
         "and writes all weights once more");
  }
  if (has_weights && world_size > 1) {
    fail(ExitCode::kBadConfig, "offload_param_device nvme needs one rank, found {}: {}", world_size,
         is_lora ? "the weights beside adapters are in memory once per node; quantization_bit 4 makes them "
                   "smaller"
                 : "zero_stage 3 with gather_schedule per_layer divides weights among nodes");
  }
  if (has_weights && spec->placement.pack_weights == AutoChoice::kAlways) {
    fail(ExitCode::kBadConfig,
         "pack_weights always contradicts offload_param_device nvme: packed weights stay in memory");
  }
  const bool is_used = spec->placement.optimizer_device == OffloadDevice::kNvme || has_weights ||
                       spec->placement.offloads_inputs() || spec->placement.fit;
  if (!spec->placement.fit) {
    warn_if_set(table, {"fit_choice", "fit_memory", "fit_disk"}, "fit is false");
  }
  if (!is_used) {
    warn_if_set(table, {"offload_dir", "aio_block_size", "aio_queue_depth"}, "nothing is kept on a disk");
    spec->placement.offload_dir.clear();
  } else if (spec->placement.offload_dir.empty()) {
    spec->placement.offload_dir = (std::filesystem::path(spec->output_dir) / "offload").string();
  }
}

void check_optimizer(const FlagTable& table, const OptimizerSpec& optimizer, const SavingSpec& saving) {
  if (optimizer.form != OptimizerForm::kMuon) {
    warn_if_set(table, {"muon_momentum", "muon_adjust_lr_fn"}, "optim is {}", optimizer.form);
  }
  if (is_elementwise(state_tensors_of(optimizer))) return;
  if (saving.peer_snapshot_steps > 0) {
    fail(ExitCode::kBadConfig,
         "peer_snapshot_steps {} contradicts optim {}: copies in memory hold one value per element; use "
         "save_steps",
         saving.peer_snapshot_steps, optimizer.form);
  }
}

void check_lora(const FlagTable& table, const RunSpec& spec) {
  const bool is_lora = spec.lora.finetuning_type == FinetuningType::kLora;
  if (is_lora && spec.sharding.load_once == LoadOnce::kPerCluster) {
    log_warning(
        "load_weights_once per_cluster: each node reads the weights beside which adapters are trained");
  }
  if (is_lora && spec.placement.optimizer_in_backward) {
    fail(ExitCode::kBadConfig,
         "optimizer_in_backward contradicts finetuning_type lora: the gradients of adapters are small; leave "
         "it out");
  }
  if (is_lora && spec.lora.adapter.empty()) return;
  if (!is_lora && !spec.lora.adapter.empty()) {
    fail(ExitCode::kBadConfig, "adapter_name_or_path: needs finetuning_type lora, found {}",
         spec.lora.finetuning_type);
  }
  const bool is_off = table.is_set("use_peft") && !spec.sources.script.use_peft;
  for (const char* flag : kAdapterFlags) {
    if (!table.is_set(flag)) continue;
    if (!is_lora && is_off) {
      log_warning("{} has no effect: use_peft is false, so all weights are trained, as in TRL", flag);
      continue;
    }
    if (!is_lora) fail(ExitCode::kBadConfig, "{}: needs finetuning_type lora, found full", flag);
    fail(ExitCode::kBadConfig, "{}: {} of {} decides; leave it out", flag, kAdapterConfigName,
         spec.lora.adapter);
  }
}

void check_base_quantization(const FlagTable& table, const BaseSpec& base, FinetuningType finetuning) {
  const int64_t bits = base.bits_wanted();
  if (base.bits && bits != 4 && bits != 8) {
    fail(ExitCode::kBadConfig, "quantization_bit: expected 8 or 4, found {}", bits);
  }
  for (const auto& [flag, is_set, of_flag] :
       {std::tuple{"load_in_4bit", base.load_in_4bit, 4}, std::tuple{"load_in_8bit", base.load_in_8bit, 8}}) {
    if (!is_set || of_flag == bits) continue;
    fail(ExitCode::kBadConfig, "{} contradicts {}: leave one of them out", flag,
         base.bits ? fmt::format("quantization_bit {}", bits) : "load_in_8bit");
  }
  if (bits == 0) return;
  if (finetuning != FinetuningType::kLora) {
    fail(ExitCode::kBadConfig,
         "{}: needs finetuning_type lora, found {}: weights that are trained are bfloat16 or float32 (see "
         "dtype)",
         base.bits   ? "quantization_bit"
         : bits == 8 ? "load_in_8bit"
                     : "load_in_4bit",
         finetuning);
  }
  for (const char* flag : {"bnb_4bit_quant_type", "bnb_4bit_use_double_quant"}) {
    if (table.is_set(flag) && bits == 8) {
      fail(ExitCode::kBadConfig, "{}: needs weights in 4 bits, found 8", flag);
    }
  }
}

}  // namespace tessera
