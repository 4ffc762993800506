#include "arguments/foreign/unsupported_flags.h"

#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

constexpr FlagType kBool = FlagType::kBool;
constexpr FlagType kInt = FlagType::kInt;
constexpr FlagType kFloat = FlagType::kFloat;
constexpr FlagType kText = FlagType::kString;
constexpr FlagType kList = FlagType::kStringList;

constexpr const char* kLauncher =
    "ranks are numbered by the environment that tessera launch or another launcher sets";
constexpr const char* kOwnExchange = "ranks use Tessera's own communication";
constexpr const char* kZero = "zero_stage decides what is sharded";
constexpr const char* kNoGpu = "it applies only to GPUs and other accelerators";
constexpr const char* kNothingCompiled = "nothing is compiled at run time";
constexpr const char* kNoWorkers = "rows are read from a cache file, without loader processes";
constexpr const char* kNoHub = "nothing is uploaded";
constexpr const char* kNoService = "this service is not supported; report_to lists those that are";
constexpr const char* kLora = "use --finetuning_type lora";
constexpr const char* kCausal = "models predict the next token";
constexpr const char* kOtherAdapter = "of adapters there is LoRA as Hu et al. describe it";
constexpr const char* kOnlyAdapters = "embedding, norms and LM head stay as they are beside adapters";
constexpr const char* kOneAttention = "there is one implementation, which never stores the full score matrix";
constexpr const char* kNotPadded = "rows are never padded";
constexpr const char* kRemoved = "Hugging Face removed it";

constexpr UnsupportedFlag kRefused[] = {
    {"fp16", kBool, "false", "float16 needs loss scaling; use --dtype bfloat16 or float32"},
    {"fp16_full_eval", kBool, "false", "evaluation runs in --dtype"},
    {"optim_args", kText, "", "optimizers take their settings from adam_*, muon_* and weight_decay"},
    {"optim_target_modules", kText, "", "all parameters are trained with --optim"},
    {"adafactor", kBool, "false", "use --optim adafactor"},
    {"use_muon", kBool, "false", "use --optim muon"},
    {"split_batches", kBool, "false", "per_device_train_batch_size is the size of a micro-batch"},
    {"parallelism_config", kText, "", "ranks split the rows of a step and nothing else; see zero_stage"},
    {"past_index", kInt, "-1", "models of this family have no such state"},
    {"ignore_data_skip", kBool, "false",
     "a resumed run continues with the rows after the checkpoint; no data is read to get there"},
    {"push_to_hub", kBool, "false", "upload output_dir with Hugging Face's own tools"},
    {"save_safetensors", kBool, "true", "no other format is written"},
    // From TRL, LLaMA-Factory and Axolotl.
    {"loss_type", kText, "nll|chunked_nll", "the loss is the negative log-likelihood of the targets"},
    {"truncation_mode", kText, "keep_start", "rows keep their first max_length tokens"},
    {"shuffle_dataset", kBool, "false",
     "shuffle draws a new order in every epoch, without one of the data set"},
    {"router_aux_loss_coef", kFloat, "0", "models with a router are not supported"},
    {"dataset_streaming", kBool, "false", "use streaming, which shuffles rows in a buffer"},
    {"test_split_size", kFloat, "", "use validation_split_percentage"},
    // Fields of PEFT's LoraConfig, and TRL's names for them. lora_arguments.cc has those that are honoured.
    {"lora_task_type", kText, "CAUSAL_LM", kCausal},
    {"task_type", kText, "CAUSAL_LM", kCausal},
    {"bias", kText, "none", "biases stay as they are beside adapters"},
    {"lora_bias", kBool, "false", "adapters have no bias"},
    {"lora_modules_to_save", kList, "", kOnlyAdapters},
    {"modules_to_save", kList, "", kOnlyAdapters},
    {"trainable_token_indices", kText, "", kOnlyAdapters},
    {"lora_target_parameters", kList, "", "adapters are for linear modules"},
    {"target_parameters", kList, "", "adapters are for linear modules"},
    {"init_lora_weights", kText, "true", "adapters begin as PEFT's true: A random, B zero"},
    {"fan_in_fan_out", kBool, "false", "models of this family store weights as [out, in]"},
    {"layer_replication", kText, "", "layers are those of the model"},
    {"megatron_config", kText, "", kOtherAdapter},
    {"loftq_config", kText, "{}", kOtherAdapter},
    {"eva_config", kText, "", kOtherAdapter},
    {"corda_config", kText, "", kOtherAdapter},
    {"lora_ga_config", kText, "", kOtherAdapter},
    {"velora_config", kText, "", kOtherAdapter},
    {"alora_invocation_tokens", kList, "", kOtherAdapter},
    {"use_qalora", kBool, "false", kOtherAdapter},
    {"monteclora_config", kText, "", kOtherAdapter},
    {"use_bdlora", kText, "", kOtherAdapter},
    {"arrow_config", kText, "", kOtherAdapter},
    {"kasa_config", kText, "", kOtherAdapter},
    {"ensure_weight_tying", kBool, "false", kOnlyAdapters},
    {"rl", kText, "", "training is always on the next token"},
    {"plugins", kList, "", "plugins of Axolotl are not loaded"},
    {"activation_offloading", kBool, "false",
     "gradient_checkpointing_mode offload keeps the inputs of layers on disk"},
    {"use_lora", kBool, "false", kLora},
    {"adapter", kText, "", kLora},
    {"use_dora", kBool, "false", "adapters are LoRA's without a magnitude vector"},
    {"additional_target", kText, "", kOnlyAdapters},
    {"quantization_method", kText, "bnb", "there is one implementation of each form"},
    {"llm_int8_threshold", kFloat, "", "outliers among activations are quantised like the rest of their row"},
};

constexpr UnsupportedFlag kIgnored[] = {
    // Scripts.
    {"do_train", kBool, "true|false", "tessera train always trains"},
    {"do_eval", kBool, "false", "eval_strategy decides"},
    {"do_predict", kBool, "false", "there is no prediction pass"},
    {"overwrite_output_dir", kBool, "false", "files from an earlier run are moved aside, never overwritten"},
    {"ignore_bias_buffers", kBool, "false", "the models have no buffers"},
    {"trust_remote_code", kBool, "false", "code in model folders is never run"},
    {"use_fast_tokenizer", kBool, "true", "there is one tokenizer"},
    {"bnb_4bit_compute_dtype", kText, "", "products compute in --dtype"},
    {"bnb_4bit_quant_storage", kText, "", "codes are bytes"},
    {"low_cpu_mem_usage", kBool, "true", "weights are always read in pieces"},
    {"preprocessing_num_workers", kInt, "", "the tokenizer uses num_threads"},
    // Evaluation and checkpoints.
    {"eval_accumulation_steps", kInt, "", "evaluation keeps no outputs"},
    {"prediction_loss_only", kBool, "false", "evaluation computes the loss only"},
    {"batch_eval_metrics", kBool, "false", "evaluation computes the loss only"},
    {"eval_do_concat_batches", kBool, "true", "evaluation keeps no outputs"},
    {"eval_use_gather_object", kBool, "false", "evaluation computes the loss only"},
    {"save_only_model", kBool, "false", "checkpoints always hold what is needed to resume"},
    {"save_on_each_node", kBool, "false", "checkpoints are written once"},
    {"enable_jit_checkpoint", kBool, "false", "save_on_sigterm decides"},
    {"restore_callback_states_from_checkpoint", kBool, "false", "there are no callbacks"},
    // Machine and compilation.
    {"full_determinism", kBool, "false", "repeated runs are always bit-identical"},
    {"use_cpu", kBool, "true|false", "device decides, cpu unless it says cuda"},
    {"no_cuda", kBool, "true|false", "device decides, cpu unless it says cuda"},
    {"use_mps_device", kBool, "false", kNoGpu},
    {"tf32", kBool, "", kNoGpu},
    {"use_ipex", kBool, "false", kNothingCompiled},
    {"jit_mode_eval", kBool, "false", kNothingCompiled},
    {"torch_compile", kBool, "false", kNothingCompiled},
    {"torch_compile_backend", kText, "", kNothingCompiled},
    {"torch_compile_mode", kText, "", kNothingCompiled},
    {"torchdynamo", kText, "", kNothingCompiled},
    {"use_cache", kBool, "false", "training keeps no keys and values for later tokens"},
    {"torch_empty_cache_steps", kInt, "", "no memory is allocated during training"},
    {"use_liger_kernel", kBool, "false", kNoGpu},
    {"liger_kernel_config", kText, "", kNoGpu},
    {"attn_implementation", kText, "", kOneAttention},
    {"flash_attention", kText, "", kOneAttention},
    {"flash_attn", kText, "", kOneAttention},
    {"sdp_attention", kBool, "", kOneAttention},
    {"xformers_attention", kBool, "", kOneAttention},
    {"eager_attention", kBool, "", kOneAttention},
    {"flex_attention", kBool, "", kOneAttention},
    {"fp16_opt_level", kText, "O1", kNoGpu},
    {"fp16_backend", kText, "auto", kNoGpu},
    {"half_precision_backend", kText, "auto", kNoGpu},
    {"tpu_num_cores", kInt, "", kNoGpu},
    {"tpu_metrics_debug", kBool, "false", kNoGpu},
    {"gradient_checkpointing_kwargs", kText, "", "gradient_checkpointing_mode decides what is recomputed"},
    {"auto_find_batch_size", kBool, "false",
     "memory is checked before the first step; choose a batch that fits"},
    {"use_reentrant_gc", kBool, "true", "there is no autograd: backward passes are explicit"},
    {"auto_mapping", kText, "", "modules are found by their names"},
    {"megatron_core", kText, "megatron.core", "there is no Megatron"},
    {"qalora_group_size", kInt, "16", "use_qalora is not supported"},
    {"runtime_config", kText, "", kNoGpu},
    {"inference_mode", kBool, "false", "tessera train always trains"},
    {"peft_version", kText, "", "adapter_config.json is written as PEFT reads it"},
    {"model_type", kText, "", "config.json decides"},
    {"tokenizer_type", kText, "", "there is one tokenizer"},
    {"strict", kBool, "false", "unknown settings are always refused"},
    // Loading data.
    {"pad_to_sequence_len", kBool, "", kNotPadded},
    {"pad_to_multiple_of", kText, "auto|none", kNotPadded},
    {"pad_token", kText, "<PAD_TOKEN>|none", "rows are never padded, and the model keeps its pad_token_id"},
    {"padding_free", kBool, "false", "rows are stored without padding in any case"},
    {"dataset_num_proc", kInt, "", "the tokenizer uses num_threads, and rows are packed as with 1"},
    {"dataset_processes", kInt, "", "the tokenizer uses num_threads"},
    {"dataset_batch_size", kInt, "1000", kNoWorkers},
    {"overwrite_cache", kBool, "false", "the cache is named after the contents of files and the settings"},
    {"remove_unused_columns", kBool, "true", "only the columns of the rows' format are used"},
    {"dataloader_num_workers", kInt, "0", kNoWorkers},
    {"dataloader_pin_memory", kBool, "true|false", kNoWorkers},
    {"dataloader_multiprocessing_context", kText, "", kNoWorkers},
    {"dataloader_in_order", kBool, "true", "rows are always read in order"},
    {"dataloader_persistent_workers", kBool, "false", kNoWorkers},
    {"dataloader_prefetch_factor", kInt, "", kNoWorkers},
    {"dispatch_batches", kBool, "", kNoWorkers},
    {"length_column_name", kText, "length",
     "lengths are those of input_ids, as where unused columns are removed"},
    {"label_names", kList, "", "the shape of the rows decides what the loss is taken on"},
    // Several processes.
    {"local_rank", kInt, "-1", kLauncher},
    {"ddp_backend", kText, "", kOwnExchange},
    {"ddp_find_unused_parameters", kBool, "", "no parameter is unused"},
    {"ddp_static_graph", kBool, "false", "there is no autograd: backward passes are explicit"},
    {"ddp_bucket_cap_mb", kInt, "", kOwnExchange},
    {"ddp_broadcast_buffers", kBool, "", "the models have no buffers"},
    {"fsdp_min_num_params", kInt, "0", kZero},
    {"fsdp_transformer_layer_cls_to_wrap", kText, "", kZero},
    {"mp_parameters", kText, "", kLauncher},
    {"ray_scope", kText, "last", "it is for hyperparameter search"},
    // Reports.
    {"logging_nan_inf_filter", kBool, "true", "a loss that is not finite ends the run"},
    {"wandb_project", kText, "", kNoService},
    {"wandb_entity", kText, "", kNoService},
    {"wandb_watch", kText, "", kNoService},
    {"wandb_name", kText, "", kNoService},
    {"wandb_run_id", kText, "", kNoService},
    {"wandb_log_model", kText, "", kNoService},
    {"plot_loss", kBool, "false", "the terminal shows a plot of the loss"},
    {"project", kText, "huggingface", kNoService},
    {"trackio_space_id", kText, "trackio", kNoService},
    {"trackio_bucket_id", kText, "", kNoService},
    {"trackio_static_space_id", kText, "", kNoService},
    {"log_level_replica", kText, "warning", "log_level applies to all ranks"},
    {"log_on_each_node", kBool, "true", "rank 0 reports"},
    {"include_tokens_per_second", kBool, "false", "metrics.jsonl always has tokens_per_second"},
    {"include_inputs_for_metrics", kBool, "false", "evaluation computes the loss only"},
    {"include_for_metrics", kList, "", "evaluation computes the loss only"},
    {"skip_memory_metrics", kBool, "true", "a memory table is always shown before the first step"},
    {"debug", kList, "", kNoGpu},
    {"hub_model_id", kText, "", kNoHub},
    {"hub_strategy", kText, "every_save", kNoHub},
    {"hub_token", kText, "<HUB_TOKEN>|none", kNoHub},
    {"hub_private_repo", kBool, "", kNoHub},
    {"hub_always_push", kBool, "false", kNoHub},
    {"hub_revision", kText, "", kNoHub},
    {"push_to_hub_model_id", kText, "", kNoHub},
    {"push_to_hub_organization", kText, "", kNoHub},
    {"push_to_hub_token", kText, "<PUSH_TO_HUB_TOKEN>|none", kNoHub},
    {"use_legacy_prediction_loop", kBool, "false", kRemoved},
    {"sharded_ddp", kText, "", kRemoved},
};

void declare(FlagTable* table, std::span<const UnsupportedFlag> flags, FlagStatus status) {
  for (const UnsupportedFlag& flag : flags) {
    table->add_unsupported(flag.name, flag.type, flag.default_text, status, flag.note);
  }
}

}  // namespace

void declare_unsupported_flags(FlagTable* table) {
  table->begin_section("Hugging Face arguments that are refused");
  declare(table, kRefused, FlagStatus::kRefused);
  table->begin_section("Hugging Face arguments without effect");
  declare(table, kIgnored, FlagStatus::kIgnored);
  table->add_alias("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs");
}

void declare_unsupported_flag(FlagTable* table, std::string_view name) {
  for (const auto& [flags, status] :
       {std::pair(std::span<const UnsupportedFlag>(kRefused), FlagStatus::kRefused),
        std::pair(std::span<const UnsupportedFlag>(kIgnored), FlagStatus::kIgnored)}) {
    for (const UnsupportedFlag& flag : flags) {
      if (name != flag.name) continue;
      return declare(table, {&flag, 1}, status);
    }
  }
  TESSERA_CHECK(false, "no flag {}", name);
}

}  // namespace tessera
