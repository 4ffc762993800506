#include "arguments/foreign/axolotl_keys.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/text_fields.h"

namespace tessera {
namespace {

struct AxolotlTables {
  using enum AxolotlUse;

  static constexpr const char* kService = "this service is not supported; report_to lists those that are";
  static constexpr const char* kMemory =
      "what is kept in memory does not change the result; see gradient_checkpointing_mode";
  static constexpr const char* kKernels = "kernels are chosen automatically";
  static constexpr const char* kSharding = "zero_stage decides what is sharded";
  static constexpr const char* kLaunch = "tessera launch and device decide";
  static constexpr const char* kNotPacked = "it only changes which documents share a row";
  static constexpr const char* kReinforcement = "training is always on the next token";
  static constexpr const char* kPreferences = "it belongs to rl, which is refused";
  static constexpr const char* kOptimizer = "it belongs to an optimizer that is refused";
  static constexpr const char* kMoreSamples = "no samples are generated during training";
  static constexpr const char* kOneModel =
      "models of text with one architecture file, config.json, are supported";
  static constexpr const char* kPartly = "training only part of the weights is not supported";
  static constexpr const char* kRates = "there is one learning rate";
  static constexpr const char* kTokens = "tokens are those of the tokenizer's files";
  static constexpr const char* kLoader = "rows are read from a cache file, without loader processes";
  static constexpr const char* kUpload = "nothing is uploaded";
  static constexpr const char* kRelora = "adapters are not merged and restarted during training";
  static constexpr const char* kInternal = "Axolotl sets it itself";
  static constexpr const char* kQuantized =
      "of weights only those beside LoRA adapters are quantised, by load_in_4bit or load_in_8bit";

  static constexpr AxolotlKeys kKeys[] = {
      // Model and tokenizer.
      {kSame, "base_model", "model"},
      {kTranslated, "base_model_config", "refused unless it is base_model"},
      {kTranslated, "tokenizer_config", "tokenizer"},
      {kTranslated, "revision_of_model model_revision", "model @revision"},
      {kNoEffect,
       "type_of_model model_type cls_model_config tokenizer_type tokenizer_use_fast tokenizer_legacy "
       "tokenizer_save_jinja_files trust_remote_code is_falcon_derived_model is_llama_derived_model "
       "is_mistral_derived_model is_qwen_derived_model",
       "config.json and tokenizer.json decide, and code in model folders is never run"},
      {kRefused, "tokenizer_use_mistral_common", "a tokenizer is read from tokenizer.json", "false"},
      {kRefused, "overrides_of_model_config model_config overrides_of_model_kwargs model_kwargs rope_scaling",
       "change config.json in the model's folder instead", "{}"},
      {kRefused, "processor_type processor_kwargs image_size image_resize_algorithm role_boundaries",
       kOneModel},
      {kRefused, "freeze_mm_modules", kOneModel, "false"},
      {kRefused, "resize_token_embeddings_to_32x shrink_embeddings reinit_weights",
       "weights are read as they are", "false"},
      {kNoEffect,
       "mean_resizing_embeddings embeddings_skip_upcast experimental_skip_move_to_device low_cpu_mem_usage",
       "weights are read in pieces, as they are"},
      {kRefused,
       "model_quantization_config model_quantization_config_kwargs gptq use_onebitllms quantize_moe_experts "
       "qat quantization bnb_config_kwargs",
       kQuantized, "false {}"},
      {kTranslated, "special_tokens", "eos_token; the others are checked against the tokenizer"},
      {kRefused, "tokens added_tokens_overrides", kTokens, "[] {}"},
      {kRefused, "fix_untrained_tokens", kTokens},
      {kTranslated, "chat_template chat_template_jinja", "chat_template"},
      {kTranslated, "chat_template_kwargs eot_tokens", "the data sets' formats"},
      {kNoEffect, "default_system_message", "the chatml template has no system message of its own"},
      // Adapters.
      {kTranslated, "adapter", "finetuning_type"},
      {kTranslated, "load_in_8bit load_in_4bit", "the same flags, beside an adapter"},
      {kTranslated, "lora_r lora_alpha lora_dropout lora_target_modules lora_target_linear lora_model_dir",
       "the flags of LoRA"},
      {kSame, "lora_modules_to_save", "modules_to_save"},
      {kSame, "lora_rank_pattern", "rank_pattern"},
      {kSame, "lora_alpha_pattern", "alpha_pattern"},
      {kSame, "peft_use_rslora", "use_rslora"},
      {kSame, "peft_layers_to_transform", "layers_to_transform"},
      {kSame, "peft_layers_pattern", "layers_pattern"},
      {kSame, "peft_use_dora", "use_dora"},
      {kRefused,
       "lora_target_parameters peft_layer_replication "
       "peft_trainable_token_indices peft",
       "adapters are LoRA's, beside linear modules", "[] {}"},
      {kRefused, "peft_init_lora_weights", "A is drawn as PEFT does by default, B is zero", "true"},
      {kNoEffect, "lora_fan_in_fan_out", "PEFT turns it off for linear modules"},
      {kRefused, "peft_ensure_weight_tying", "adapters of tied weights are not tied", "false"},
      {kNoEffect, "peft_autocast_adapter_dtype", "adapters are updated in float32"},
      {kNoEffect,
       "qlora_sharded_model_loading lora_on_cpu merge_lora merge_method lora_mlp_kernel lora_qkv_kernel "
       "lora_o_kernel lora_embedding_kernel",
       kKernels},
      {kRefused, "loraplus_lr_ratio", kRates},
      {kNoEffect, "loraplus_lr_embedding", "it belongs to loraplus_lr_ratio, which is refused"},
      {kRefused, "relora jagged_restart_steps", kRelora, "false"},
      {kNoEffect,
       "relora_prune_ratio relora_prune_method relora_cpu_offload jagged_restart_warmup_steps "
       "jagged_restart_anneal_steps",
       "it belongs to relora, which is refused"},
      {kRefused, "lisa_n_layers lisa_step_interval unfrozen_parameters", kPartly, "[]"},
      {kNoEffect, "lisa_layers_attribute", "it belongs to lisa_n_layers, which is refused"},
      // Data.
      {kTranslated, "datasets", "dataset and dataset_formats"},
      {kTranslated, "test_datasets", "eval_dataset and dataset_formats"},
      {kRefused, "pretraining_dataset",
       "name it in datasets with type completion, and set streaming and sample_packing"},
      {kTranslated, "val_set_size", "validation_split_percentage"},
      {kTranslated, "train_on_inputs", "train_on_prompt"},
      {kSame, "dataset_prepared_path", "cache_dir"},
      {kSame, "sequence_len", "max_length"},
      {kTranslated, "eval_sequence_len", "refused unless it is sequence_len"},
      {kTranslated, "excess_length_strategy", "excess_length_strategy"},
      {kRefused, "min_sample_len", "a row needs two tokens", "1 2"},
      {kSame, "sample_packing", "packing"},
      {kTranslated, "eval_sample_packing", "eval_packing beside test_datasets"},
      {kNoEffect,
       "sample_packing_group_size sample_packing_bin_size sample_packing_sequentially "
       "sample_packing_mp_start_method sample_packing_eff_est multipack_real_batches batch_flattening "
       "pretrain_multipack_buffer_size streaming_multipack_buffer_size",
       kNotPacked},
      {kRefused, "max_packed_sequence_len", "Axolotl refuses it, too: set sequence_len"},
      {kRefused, "pretrain_multipack_attn", "documents that share a row never see each other", "true"},
      {kNoEffect, "pretraining_sample_concatenation", "it belongs to pretraining_dataset, which is refused"},
      {kNoEffect, "pad_to_sequence_len pad_to_multiple_of", "rows are never padded"},
      {kTranslated, "curriculum_sampling", "train_sampling_strategy sequential"},
      {kTranslated, "group_by_length", "train_sampling_strategy group_by_length"},
      {kNoEffect, "shuffle_merged_datasets shuffle_before_merging_datasets",
       "the rows of an epoch are shuffled anyway, or none with curriculum_sampling"},
      {kSame, "streaming", "streaming"},
      {kRefused, "dataset_exact_deduplication skip_prepare_dataset", "prepare the data before", "false"},
      {kRefused, "dataset_shard_num dataset_shard_idx", "write split: train[10%:20%] to the data set"},
      {kNoEffect,
       "dataset_processes dataset_num_proc dataset_keep_in_memory num_dataset_shards_to_save "
       "dataloader_pin_memory dataloader_num_workers dataloader_prefetch_factor remove_unused_columns "
       "preprocess_iterable is_preprocess",
       kLoader},
      {kSame, "dataloader_drop_last", ""},
      {kRefused, "accelerator_config", "batches are always even and seeded", "{}"},
      {kNoEffect, "push_dataset_to_hub hub_model_id hub_strategy hub_revision", kUpload},
      {kNoEffect, "hf_use_auth_token", "HF_TOKEN in the environment, or 'hf auth login', sets the token"},
      {kRefused, "use_pose pose_split_on_token_ids pose_max_context_len pose_num_chunks",
       "positions are never skipped", "false []"},
      // Batch, length of the run, optimizer.
      {kSame,
       "gradient_accumulation_steps learning_rate weight_decay lr_scheduler_kwargs adam_epsilon adam_beta1 "
       "adam_beta2 max_grad_norm max_steps seed neftune_noise_alpha",
       ""},
      {kSame, "micro_batch_size", "per_device_train_batch_size"},
      {kSame, "eval_batch_size", "per_device_eval_batch_size"},
      {kRefused, "batch_size", "set gradient_accumulation_steps: batch_size / micro_batch_size / ranks"},
      {kRefused, "auto_find_batch_size", "choose a micro_batch_size that fits", "false"},
      {kSame, "num_epochs", "num_train_epochs"},
      {kSame, "optimizer", "optim"},
      {kSame, "lr_scheduler", "lr_scheduler_type"},
      {kTranslated, "cosine_min_lr_ratio", "lr_scheduler_type cosine_with_min_lr"},
      {kRefused, "cosine_constant_lr_ratio lr_quadratic_warmup lr_div_factor", "there is no such schedule",
       "false 0 0.0"},
      {kTranslated, "warmup_steps warmup_ratio", "the same flags"},
      {kRefused, "embedding_lr embedding_lr_scale lr_groups", kRates, "[]"},
      {kRefused, "optim_args optim_target_modules adam_epsilon2 adam_beta3",
       "optimizers take their settings from adam_beta1, adam_beta2, adam_epsilon and weight_decay", "{} []"},
      {kNoEffect,
       "dion_lr dion_momentum dion_rank_fraction dion_rank_multiple_of qgalore_rank "
       "qgalore_update_proj_gap qgalore_scale qgalore_proj_type qgalore_proj_quant qgalore_proj_bits "
       "qgalore_proj_group_size qgalore_cos_threshold qgalore_gamma_proj qgalore_queue_size torchdistx_path",
       kOptimizer},
      {kSame, "noisy_embedding_alpha", "neftune_noise_alpha"},
      {kRefused, "scaling_softmax scaling_softmax_factor scaling_softmax_bias use_eaft trainer_cls",
       "the model and its loss are those of the architecture", "false"},
      {kNoEffect, "eaft_alpha eaft_k", "it belongs to use_eaft, which is refused"},
      // Precision and memory.
      {kTranslated, "bf16 bfloat16", "bf16"},
      {kRefused, "fp16 float16", "float16 needs loss scaling: set bf16", "false"},
      {kRefused, "float32", "set bf16: false for float32", "false"},
      {kRefused, "fp8 fp8_config fp8_enable_fsdp_float8_all_gather", "there are no float8 products",
       "false {}"},
      {kNoEffect, "tf32", "it applies only to GPUs"},
      {kTranslated, "gradient_checkpointing", "gradient_checkpointing"},
      {kNoEffect,
       "gradient_checkpointing_kwargs selective_checkpointing activation_offloading layer_offloading "
       "ple_cpu_offload tiled_mlp tiled_mlp_num_shards tiled_mlp_use_original_mlp gc_steps "
       "torch_empty_cache_steps gc_collect_steps max_memory gpu_memory_limit",
       kMemory},
      {kNoEffect,
       "xformers_attention sdp_attention flex_attention flex_attn_compile_kwargs flash_attention "
       "flash_attn_cross_entropy flash_attn_fuse_mlp flash_optimum sage_attention eager_attention "
       "attn_implementation gemma4_hybrid_attn_impl large_head_attention flash_attn_d512 sdpa_varlen "
       "fused_attn_kernel experts_implementation chunked_cross_entropy chunked_cross_entropy_num_chunks "
       "llama4_linearized_experts flash_attn_rms_norm use_kernels liger_rope liger_rms_norm "
       "liger_rms_norm_gated liger_layer_norm liger_swiglu liger_glu_activation liger_cross_entropy "
       "liger_fused_linear_cross_entropy liger_kernel_impl cut_cross_entropy use_scattermoe use_sonicmoe "
       "torch_compile torch_compile_backend torch_compile_mode torch_compile_options",
       kKernels},
      {kRefused, "s2_attention", "Axolotl refuses it, too: attention is causal", "false"},
      {kRefused, "liger_use_token_scaling", "every token has the same weight in the loss", "false"},
      {kTranslated, "plugins", "those for kernels are dropped"},
      // Ranks.
      {kSame, "deepspeed ddp_timeout", ""},
      {kNoEffect, "deepcompile", kKernels},
      {kNoEffect,
       "fsdp fsdp_config fsdp_version fsdp_final_state_dict_type fp32_norms fp32_norm_classes "
       "dp_shard_size dp_replicate_size",
       kSharding},
      {kSame, "context_parallel_size", ""},
      {kSame, "sequence_parallel_degree", "context_parallel_size"},
      {kNoEffect, "heads_k_stride ring_attn_func", "it belongs to the exchange, which is Tessera's own"},
      {kRefused, "tensor_parallel_size expert_parallel_size", "ranks split the rows of a step, or each row",
       "1"},
      {kNoEffect,
       "device device_map world_size local_rank ddp ddp_bucket_cap_mb ddp_broadcast_buffers "
       "ddp_find_unused_parameters use_ray ray_run_name ray_num_workers resources_per_worker",
       kLaunch},
      // Evaluation, checkpoints, reports.
      {kTranslated, "eval_steps eval_strategy evals_per_epoch", "eval_strategy, eval_steps, eval_on_start"},
      {kTranslated, "evaluation_strategy", "eval_strategy"},
      {kTranslated, "save_steps save_strategy saves_per_epoch save_total_limit", "the flags of checkpoints"},
      {kSame,
       "output_dir logging_steps early_stopping_patience load_best_model_at_end metric_for_best_model "
       "greater_is_better resume_from_checkpoint",
       ""},
      {kTranslated, "auto_resume_from_checkpoints", "resume_from_checkpoint auto"},
      {kRefused, "dynamic_checkpoint", "SIGTERM writes a checkpoint: see save_on_sigterm", "{}"},
      {kRefused, "save_safetensors", "no other format is written", "true"},
      {kNoEffect, "save_only_model save_first_step",
       "checkpoints hold what is needed to resume, by save_strategy"},
      {kNoEffect,
       "do_causal_lm_eval eval_causal_lm_metrics do_bench_eval bench_dataset bench_split eval_table_size "
       "eval_max_new_tokens",
       "evaluation computes the loss only"},
      {kNoEffect, "loss_watchdog_threshold loss_watchdog_patience",
       "a high loss does not end the run, one that is not finite does; see early_stopping_patience"},
      {kNoEffect,
       "generate_samples num_generation_samples generation_max_new_tokens generation_temperature "
       "generation_top_p generation_top_k generation_prompt_ratio generation_do_sample",
       kMoreSamples},
      {kTranslated, "use_tensorboard", "report_to tensorboard"},
      {kTranslated, "use_mlflow mlflow_run_name", "report_to mlflow, run_name"},
      {kRefused, "mlflow_tracking_uri mlflow_experiment_name hf_mlflow_log_artifacts",
       "set MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME in the environment", "false"},
      {kNoEffect,
       "use_wandb wandb_name wandb_run_id wandb_mode wandb_project wandb_entity wandb_watch "
       "wandb_log_model use_comet comet_api_key comet_workspace comet_project_name comet_experiment_key "
       "comet_mode comet_online comet_experiment_config use_trackio trackio_project_name "
       "trackio_run_name trackio_space_id use_otel_metrics otel_metrics_host otel_metrics_port "
       "gradio_title gradio_share gradio_server_name gradio_server_port gradio_max_new_tokens "
       "gradio_temperature",
       kService},
      {kNoEffect, "profiler_steps profiler_steps_start include_tokens_per_second include_tkps",
       "metrics.jsonl has the times and tokens of every step"},
      {kNoEffect, "strict axolotl_config_path total_num_tokens total_supervised_tokens", kInternal},
      // Keys of earlier releases, whose files often list them without a value.
      {kNoEffect, "debug lora_out_dir gpu_count", "Axolotl has it no longer"},
      {kRefused, "gptq_groupsize gptq_model_v1 landmark_attention xpos_rope", "Axolotl has it no longer",
       "false"},
      // Other training.
      {kRefused, "rl reward_model process_reward_model ebft", kReinforcement, "false"},
      {kNoEffect,
       "trl vllm center_rewards_coefficient num_labels dpo_use_weighting dpo_label_smoothing "
       "precompute_ref_log_probs dpo_use_liger_kernel dpo_padding_free dpo_loss_type dpo_loss_weights "
       "dpo_beta dpo_use_logits_to_keep dpo_generate_during_eval dpo_norm_loss rpo_alpha max_prompt_len "
       "orpo_alpha simpo_gamma cpo_alpha kto_desirable_weight kto_undesirable_weight rl_beta",
       kPreferences},
  };

  static constexpr AxolotlKeys kDatasetKeys[] = {
      {kTranslated, "path", "the source"},
      {kTranslated, "name revision split", "parts of the source's name; a slice of split: rows"},
      {kTranslated, "data_files", "the sources"},
      {kTranslated, "ds_type", "checked against the file's name"},
      {kTranslated, "type", "shape and prompt"},
      {kTranslated, "conversation", "the style of alpaca_chat"},
      {kTranslated, "field", "the column of the text"},
      {kTranslated, "field_messages field_tools", "columns"},
      {kTranslated, "field_thinking template_thinking_key", "a property of messages"},
      {kTranslated, "message_field_role message_field_content message_property_mappings roles", "tags"},
      {kTranslated,
       "message_field_training message_field_training_detail roles_to_train train_on_eos train_on_eot "
       "drop_system_message split_thinking",
       "turns"},
      {kTranslated, "chat_template chat_template_jinja", "chat_template, one for all"},
      {kRefused, "shards shards_idx", "write split: train[10%:20%]"},
      {kNoEffect, "preprocess_shards", "rows are tokenized in pieces anyway"},
      {kRefused, "input_transform input_format field_human field_model",
       "Axolotl's own prompt styles do not read it"},
      {kRefused, "logprobs_field temperature", "there is no distillation"},
      {kRefused, "field_chosen field_rejected step_separator max_completion_length train_on_last_step_only",
       kReinforcement},
      {kRefused, "text_column skip", "it belongs to pretraining_dataset: set field, and a slice of split"},
      {kRefused, "length sequence_length min_input_id max_input_id seed", "rows are never invented"},
      {kNoEffect, "trust_remote_code", "code of data sets is never run"},
  };
};

}  // namespace

std::span<const AxolotlKeys> axolotl_keys() { return AxolotlTables::kKeys; }
std::span<const AxolotlKeys> axolotl_dataset_keys() { return AxolotlTables::kDatasetKeys; }

const AxolotlKeys* find_axolotl_key(std::span<const AxolotlKeys> keys, std::string_view name) {
  for (const AxolotlKeys& entry : keys) {
    const std::vector<std::string> names = split(entry.names, ' ');
    if (std::find(names.begin(), names.end(), name) != names.end()) return &entry;
  }
  return nullptr;
}

}  // namespace tessera
