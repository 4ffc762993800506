#include "arguments/foreign/llama_factory_fields.h"

#include "arguments/foreign/unsupported_flags.h"

namespace tessera {
namespace {

constexpr FlagType kFieldBool = FlagType::kBool;
constexpr FlagType kFieldInt = FlagType::kInt;
constexpr FlagType kFieldFloat = FlagType::kFloat;
constexpr FlagType kFieldText = FlagType::kString;

constexpr const char* kNotePreferences =
    "only the stages rm, ppo, dpo and kto read it, which are not supported";
constexpr const char* kNoteGenerating = "nothing is generated";
constexpr const char* kNoteExporting = "tessera export writes models in other forms";
constexpr const char* kNoteServing = "only programs that generate text read it";
constexpr const char* kNoteMedia = "models read text only";
constexpr const char* kNoteFreeze = "only finetuning_type freeze reads it, which is not supported";
constexpr const char* kNoteOft = "only finetuning_type oft reads it, which is not supported";
constexpr const char* kNoteGalore = "only use_galore reads it, which is not supported";
constexpr const char* kNoteApollo = "only use_apollo reads it, which is not supported";
constexpr const char* kNoteBadam = "only use_badam reads it, which is not supported";
constexpr const char* kNoteSwanLab = "only use_swanlab reads it, which is not supported";
constexpr const char* kNoteKt = "only use_kt reads it, which is not supported";
constexpr const char* kNoteRay = "ranks are started by tessera launch or another launcher";
constexpr const char* kNoteProfiler =
    "the profiler of PyTorch is not there; metrics.jsonl has the times of every step";
constexpr const char* kNoteFp8 = "weights and activations are never in 8-bit floating point";
constexpr const char* kNoteVocabulary =
    "the vocabulary is that of the tokenizer's files: add tokens with Hugging Face's own tools";
constexpr const char* kNoteOwnKernels = "kernels are chosen automatically";
constexpr const char* kNoteOptimizer = "use one of the optimizers of --optim";
constexpr const char* kNoteAdapters = "of adapters there is LoRA as Hu et al. describe it";
constexpr const char* kNoteLosses = "the loss is cross-entropy";
constexpr const char* kNoteTemplate = "the chat template decides";

constexpr UnsupportedFlag kRefusedFields[] = {
    {"ignore_pad_token_for_loss", kFieldBool, "true",
     "rows are never padded, so there are no such tokens to train on"},
    {"eval_on_each_dataset", kFieldBool, "false", "name the sets in eval_dataset, as in a=a.jsonl b=b.jsonl"},
    {"tool_format", kFieldText, "", kNoteTemplate},
    {"enable_thinking", kFieldBool, "true", "thoughts are a part of the data"},
    {"preserve_thinking", kFieldBool, "false", kNoteTemplate},
    {"adapter_folder", kFieldText, "", "adapter_name_or_path names the whole folder"},
    {"resize_vocab", kFieldBool, "false", kNoteVocabulary},
    {"add_tokens", kFieldText, "", kNoteVocabulary},
    {"new_special_tokens_config", kFieldText, "", kNoteVocabulary},
    {"split_special_tokens", kFieldBool, "false", "parse_special_tokens decides what users write"},
    {"rope_scaling", kFieldText, "", "rope_scaling in config.json decides"},
    {"shift_attn", kFieldBool, "false", "attention is always over the whole row"},
    {"mixture_of_depths", kFieldText, "", "every layer sees every token"},
    {"moe_aux_loss_coef", kFieldFloat, "", "router_aux_loss_coef in config.json decides"},
    {"train_from_scratch", kFieldBool, "false", "tessera init makes a model with random weights to train"},
    {"quantization_device_map", kFieldText, "", "a model is not spread over several devices"},
    {"use_kt", kFieldBool, "false", "experts are trained like all layers"},
    {"freeze_language_model", kFieldBool, "false", "the language model is what is trained"},
    {"loraplus_lr_ratio", kFieldFloat, "", "all parameters of the adapters have one learning rate"},
    {"pissa_init", kFieldBool, "false", kNoteAdapters},
    {"pissa_convert", kFieldBool, "false", kNoteAdapters},
    {"create_new_adapter", kFieldBool, "false", "merge the adapter into the model first (tessera export)"},
    {"use_galore", kFieldBool, "false", kNoteOptimizer},
    {"use_apollo", kFieldBool, "false", kNoteOptimizer},
    {"use_badam", kFieldBool, "false", kNoteOptimizer},
    {"use_adam_mini", kFieldBool, "false", kNoteOptimizer},
    {"use_swanlab", kFieldBool, "false", "report_to lists the services that are supported"},
    {"use_llama_pro", kFieldBool, "false", "all layers are trained"},
    {"use_mca", kFieldBool, "false", "ranks split the rows of a step, see zero_stage"},
    {"use_hyper_parallel", kFieldBool, "false", "ranks split the rows of a step, see zero_stage"},
    {"use_dft_loss", kFieldBool, "false", kNoteLosses},
    {"use_asft_loss", kFieldBool, "false", kNoteLosses},
    {"use_eaft_loss", kFieldBool, "false", kNoteLosses},
    {"fp8", kFieldBool, "false", kNoteFp8},
    {"fp8_enable_fsdp_float8_all_gather", kFieldBool, "false", kNoteFp8},
    {"predict_with_generate", kFieldBool, "false", "evaluation computes the loss only"},
};

constexpr UnsupportedFlag kIgnoredFields[] = {
    {"media_dir", kFieldText, "", kNoteMedia},
    {"preprocessing_batch_size", kFieldInt, "1000",
     "documents are packed one after the other, in their order"},
    {"eval_num_beams", kFieldInt, "", kNoteGenerating},
    {"data_shared_file_system", kFieldBool, "false", "one rank of a machine builds the cache file"},
    {"init_special_tokens", kFieldText, "noise_init", "no tokens are added"},
    {"use_unsloth", kFieldBool, "false", kNoteOwnKernels},
    {"use_unsloth_gc", kFieldBool, "false", kNoteOwnKernels},
    {"enable_liger_kernel", kFieldBool, "false", kNoteOwnKernels},
    {"use_v1_kernels", kFieldBool, "false", kNoteOwnKernels},
    {"upcast_layernorm", kFieldBool, "false", "norms and losses compute in float32"},
    {"upcast_lmhead_output", kFieldBool, "false", "norms and losses compute in float32"},
    {"print_param_status", kFieldBool, "false", "a table of the model is always shown before the first step"},
    {"offload_folder", kFieldText, "offload", kNoteServing},
    {"infer_backend", kFieldText, "huggingface", kNoteServing},
    {"infer_dtype", kFieldText, "auto", kNoteServing},
    {"use_kv_cache", kFieldBool, "true", kNoteServing},
    {"ms_hub_token", kFieldText, "", "models are downloaded from the Hugging Face Hub only"},
    {"om_hub_token", kFieldText, "", "models are downloaded from the Hugging Face Hub only"},
    {"image_max_pixels", kFieldInt, "589824", kNoteMedia},
    {"image_min_pixels", kFieldInt, "1024", kNoteMedia},
    {"video_max_pixels", kFieldInt, "65536", kNoteMedia},
    {"video_min_pixels", kFieldInt, "256", kNoteMedia},
    {"video_maxlen", kFieldInt, "128", kNoteMedia},
    {"audio_sampling_rate", kFieldInt, "16000", kNoteMedia},
    {"image_do_pan_and_scan", kFieldBool, "false", kNoteMedia},
    {"crop_to_patches", kFieldBool, "false", kNoteMedia},
    {"use_audio_in_video", kFieldBool, "false", kNoteMedia},
    {"video_fps", kFieldFloat, "2.0", kNoteMedia},
    {"export_dir", kFieldText, "", kNoteExporting},
    {"export_quantization_dataset", kFieldText, "", kNoteExporting},
    {"export_hub_model_id", kFieldText, "", kNoteExporting},
    {"export_device", kFieldText, "cpu", kNoteExporting},
    {"export_size", kFieldInt, "5", kNoteExporting},
    {"export_quantization_bit", kFieldInt, "", kNoteExporting},
    {"export_quantization_nsamples", kFieldInt, "128", kNoteExporting},
    {"export_quantization_maxlen", kFieldInt, "1024", kNoteExporting},
    {"export_legacy_format", kFieldBool, "false", kNoteExporting},
    {"vllm_maxlen", kFieldInt, "4096", kNoteServing},
    {"vllm_max_lora_rank", kFieldInt, "32", kNoteServing},
    {"sglang_maxlen", kFieldInt, "4096", kNoteServing},
    {"sglang_tp_size", kFieldInt, "-1", kNoteServing},
    {"vllm_gpu_util", kFieldFloat, "0.7", kNoteServing},
    {"sglang_mem_fraction", kFieldFloat, "0.7", kNoteServing},
    {"vllm_enforce_eager", kFieldBool, "false", kNoteServing},
    {"vllm_config", kFieldText, "", kNoteServing},
    {"sglang_config", kFieldText, "", kNoteServing},
    {"sglang_lora_backend", kFieldText, "triton", kNoteServing},
    {"kt_weight_path", kFieldText, "", kNoteKt},
    {"kt_expert_checkpoint_path", kFieldText, "", kNoteKt},
    {"kt_use_lora_experts", kFieldBool, "", kNoteKt},
    {"kt_lora_expert_num", kFieldInt, "", kNoteKt},
    {"kt_lora_expert_intermediate_size", kFieldInt, "", kNoteKt},
    {"freeze_trainable_layers", kFieldInt, "2", kNoteFreeze},
    {"freeze_trainable_modules", kFieldText, "all", kNoteFreeze},
    {"freeze_extra_modules", kFieldText, "", kNoteFreeze},
    {"freeze_vision_tower", kFieldBool, "true", kNoteMedia},
    {"freeze_multi_modal_projector", kFieldBool, "true", kNoteMedia},
    {"loraplus_lr_embedding", kFieldFloat, "1e-6", "only loraplus_lr_ratio reads it, which is not supported"},
    {"pissa_iter", kFieldInt, "16", "only pissa_init reads it, which is not supported"},
    {"module_dropout", kFieldFloat, "0.0", kNoteOft},
    {"oft_rank", kFieldInt, "0", kNoteOft},
    {"oft_block_size", kFieldInt, "32", kNoteOft},
    {"oft_target", kFieldText, "all", kNoteOft},
    {"pref_beta", kFieldFloat, "0.1", kNotePreferences},
    {"pref_ftx", kFieldFloat, "0.0", kNotePreferences},
    {"pref_bco_weight", kFieldFloat, "0.0", kNotePreferences},
    {"dpo_label_smoothing", kFieldFloat, "0.0", kNotePreferences},
    {"kto_chosen_weight", kFieldFloat, "1.0", kNotePreferences},
    {"kto_rejected_weight", kFieldFloat, "1.0", kNotePreferences},
    {"simpo_gamma", kFieldFloat, "0.5", kNotePreferences},
    {"ppo_target", kFieldFloat, "6.0", kNotePreferences},
    {"ld_alpha", kFieldFloat, "", kNotePreferences},
    {"pref_loss", kFieldText, "sigmoid", kNotePreferences},
    {"ref_model", kFieldText, "", kNotePreferences},
    {"ref_model_adapters", kFieldText, "", kNotePreferences},
    {"reward_model", kFieldText, "", kNotePreferences},
    {"reward_model_adapters", kFieldText, "", kNotePreferences},
    {"reward_model_type", kFieldText, "lora", kNotePreferences},
    {"ppo_buffer_size", kFieldInt, "1", kNotePreferences},
    {"ppo_epochs", kFieldInt, "4", kNotePreferences},
    {"ref_model_quantization_bit", kFieldInt, "", kNotePreferences},
    {"reward_model_quantization_bit", kFieldInt, "", kNotePreferences},
    {"ppo_score_norm", kFieldBool, "false", kNotePreferences},
    {"ppo_whiten_rewards", kFieldBool, "false", kNotePreferences},
    {"galore_target", kFieldText, "all", kNoteGalore},
    {"galore_proj_type", kFieldText, "std", kNoteGalore},
    {"galore_rank", kFieldInt, "16", kNoteGalore},
    {"galore_update_interval", kFieldInt, "200", kNoteGalore},
    {"galore_scale", kFieldFloat, "2.0", kNoteGalore},
    {"galore_layerwise", kFieldBool, "false", kNoteGalore},
    {"apollo_target", kFieldText, "all", kNoteApollo},
    {"apollo_proj", kFieldText, "random", kNoteApollo},
    {"apollo_proj_type", kFieldText, "std", kNoteApollo},
    {"apollo_scale_type", kFieldText, "channel", kNoteApollo},
    {"apollo_rank", kFieldInt, "16", kNoteApollo},
    {"apollo_update_interval", kFieldInt, "200", kNoteApollo},
    {"apollo_scale", kFieldFloat, "32.0", kNoteApollo},
    {"apollo_layerwise", kFieldBool, "false", kNoteApollo},
    {"apollo_scale_front", kFieldBool, "false", kNoteApollo},
    {"badam_mode", kFieldText, "layer", kNoteBadam},
    {"badam_switch_mode", kFieldText, "ascending", kNoteBadam},
    {"badam_mask_mode", kFieldText, "adjacent", kNoteBadam},
    {"badam_start_block", kFieldInt, "", kNoteBadam},
    {"badam_switch_interval", kFieldInt, "50", kNoteBadam},
    {"badam_verbose", kFieldInt, "0", kNoteBadam},
    {"badam_update_ratio", kFieldFloat, "0.05", kNoteBadam},
    {"swanlab_project", kFieldText, "llamafactory", kNoteSwanLab},
    {"swanlab_workspace", kFieldText, "", kNoteSwanLab},
    {"swanlab_run_name", kFieldText, "", kNoteSwanLab},
    {"swanlab_mode", kFieldText, "cloud", kNoteSwanLab},
    {"swanlab_api_key", kFieldText, "", kNoteSwanLab},
    {"swanlab_logdir", kFieldText, "", kNoteSwanLab},
    {"swanlab_lark_webhook_url", kFieldText, "", kNoteSwanLab},
    {"swanlab_lark_secret", kFieldText, "", kNoteSwanLab},
    {"hyper_parallel_args", kFieldText, "", "only use_hyper_parallel reads it, which is not supported"},
    {"asft_alpha", kFieldFloat, "0.1",
     "only use_asft_loss and use_eaft_loss read it, which are not supported"},
    {"eaft_alpha", kFieldFloat, "1.0",
     "only use_asft_loss and use_eaft_loss read it, which are not supported"},
    {"compute_accuracy", kFieldBool, "false", "evaluation computes the loss only"},
    {"include_effective_tokens_per_second", kFieldBool, "false",
     "metrics.jsonl always has tokens_per_second"},
    {"do_sample", kFieldBool, "true", kNoteGenerating},
    {"num_beams", kFieldInt, "1", kNoteGenerating},
    {"temperature", kFieldFloat, "0.95", kNoteGenerating},
    {"top_p", kFieldFloat, "0.7", kNoteGenerating},
    {"repetition_penalty", kFieldFloat, "1.0", kNoteGenerating},
    {"length_penalty", kFieldFloat, "1.0", kNoteGenerating},
    {"top_k", kFieldInt, "50", kNoteGenerating},
    {"max_new_tokens", kFieldInt, "1024", kNoteGenerating},
    {"skip_special_tokens", kFieldBool, "true", kNoteGenerating},
    {"ray_num_workers", kFieldInt, "1", kNoteRay},
    {"ray_init_kwargs", kFieldText, "", kNoteRay},
    {"master_addr", kFieldText, "", kNoteRay},
    {"master_port", kFieldText, "", kNoteRay},
    {"enable_torch_profiler", kFieldBool, "false", kNoteProfiler},
    {"profiler_output_dir", kFieldText, "", kNoteProfiler},
    {"profile_modules", kFieldText, "", kNoteProfiler},
    {"profiler_wait_steps", kFieldInt, "1", kNoteProfiler},
    {"profiler_warmup_steps", kFieldInt, "1", kNoteProfiler},
    {"profiler_active_steps", kFieldInt, "1", kNoteProfiler},
    {"profiler_repeat", kFieldInt, "1", kNoteProfiler},
    {"profiler_record_shapes", kFieldBool, "true", kNoteProfiler},
    {"profiler_profile_memory", kFieldBool, "true", kNoteProfiler},
    {"profiler_with_stack", kFieldBool, "true", kNoteProfiler},
    {"fp8_backend", kFieldText, "auto", kNoteFp8},
    {"sortish_sampler", kFieldBool, "false",
     "rows are never padded, so sorting them by length saves nothing"},
    {"generation_max_length", kFieldInt, "", kNoteGenerating},
    {"generation_num_beams", kFieldInt, "", kNoteGenerating},
    {"generation_config", kFieldText, "", kNoteGenerating},
};

void declare_fields(FlagTable* table, std::span<const UnsupportedFlag> fields, FlagStatus status) {
  for (const UnsupportedFlag& field : fields) {
    if (table->find(field.name) != nullptr) continue;
    table->add_unsupported(field.name, field.type, field.default_text, status, field.note).listed = false;
  }
}

}  // namespace

void declare_llama_factory_fields(FlagTable* table) {
  declare_fields(table, kRefusedFields, FlagStatus::kRefused);
  declare_fields(table, kIgnoredFields, FlagStatus::kIgnored);
}

}  // namespace tessera
