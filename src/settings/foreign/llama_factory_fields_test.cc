#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "support/settings/foreign_datasets_fixture.h"

namespace tessera {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The fields that a file for `llamafactory-cli train` may set: DataArguments, ModelArguments,
// FinetuningArguments, GeneratingArguments and TrainingArguments in hparams/*.py of LLaMA-Factory 0.9.5,
// without the TrainingArguments of Transformers.
constexpr const char* kFieldsOfLlamaFactory =
    "adapter_folder adapter_name_or_path add_special_tokens add_tokens additional_target "
    "apollo_layerwise apollo_proj apollo_proj_type apollo_rank apollo_scale apollo_scale_front "
    "apollo_scale_type apollo_target apollo_update_interval asft_alpha audio_sampling_rate "
    "badam_mask_mode badam_mode badam_start_block badam_switch_interval badam_switch_mode "
    "badam_update_ratio badam_verbose buffer_size cache_dir compute_accuracy create_new_adapter "
    "crop_to_patches cutoff_len data_shared_file_system dataset dataset_dir default_system "
    "disable_gradient_checkpointing disable_shuffling do_sample double_quantization "
    "dpo_label_smoothing eaft_alpha early_stopping_steps enable_liger_kernel enable_thinking "
    "enable_torch_profiler eval_dataset eval_num_beams eval_on_each_dataset export_device export_dir "
    "export_hub_model_id export_legacy_format export_quantization_bit export_quantization_dataset "
    "export_quantization_maxlen export_quantization_nsamples export_size finetuning_type flash_attn "
    "fp8 fp8_backend fp8_enable_fsdp_float8_all_gather freeze_extra_modules freeze_language_model "
    "freeze_multi_modal_projector freeze_trainable_layers freeze_trainable_modules "
    "freeze_vision_tower galore_layerwise galore_proj_type galore_rank galore_scale galore_target "
    "galore_update_interval generation_config generation_max_length generation_num_beams "
    "hf_hub_token hyper_parallel_args ignore_pad_token_for_loss image_do_pan_and_scan "
    "image_max_pixels image_min_pixels include_effective_tokens_per_second infer_backend infer_dtype "
    "init_special_tokens interleave_probs kt_expert_checkpoint_path kt_lora_expert_intermediate_size "
    "kt_lora_expert_num kt_use_lora_experts kt_weight_path kto_chosen_weight kto_rejected_weight "
    "ld_alpha length_penalty lora_alpha lora_dropout lora_rank lora_target loraplus_lr_embedding "
    "loraplus_lr_ratio low_cpu_mem_usage mask_history master_addr master_port max_length "
    "max_new_tokens max_samples media_dir mix_strategy mixture_of_depths model_name_or_path "
    "model_revision module_dropout moe_aux_loss_coef ms_hub_token neat_packing "
    "new_special_tokens_config num_beams offload_folder oft_block_size oft_rank oft_target "
    "om_hub_token overwrite_cache overwrite_output_dir packing pissa_convert pissa_init pissa_iter "
    "plot_loss ppo_buffer_size ppo_epochs ppo_score_norm ppo_target ppo_whiten_rewards "
    "predict_with_generate pref_bco_weight pref_beta pref_ftx pref_loss preprocessing_batch_size "
    "preprocessing_num_workers preserve_thinking print_param_status profile_modules "
    "profiler_active_steps profiler_output_dir profiler_profile_memory profiler_record_shapes "
    "profiler_repeat profiler_wait_steps profiler_warmup_steps profiler_with_stack pure_bf16 "
    "quantization_bit quantization_device_map quantization_method quantization_type ray_init_kwargs "
    "ray_num_workers ref_model ref_model_adapters ref_model_quantization_bit repetition_penalty "
    "resize_vocab reward_model reward_model_adapters reward_model_quantization_bit reward_model_type "
    "rope_scaling seed sglang_config sglang_lora_backend sglang_maxlen sglang_mem_fraction "
    "sglang_tp_size shift_attn simpo_gamma skip_special_tokens sortish_sampler split_special_tokens "
    "stage streaming swanlab_api_key swanlab_lark_secret swanlab_lark_webhook_url swanlab_logdir "
    "swanlab_mode swanlab_project swanlab_run_name swanlab_workspace temperature template "
    "tokenized_path tool_format top_k top_p train_from_scratch train_on_prompt trust_remote_code "
    "upcast_layernorm upcast_lmhead_output use_adam_mini use_apollo use_asft_loss use_audio_in_video "
    "use_badam use_dft_loss use_dora use_eaft_loss use_fast_tokenizer use_galore use_hyper_parallel "
    "use_kt use_kv_cache use_llama_pro use_mca use_muon use_reentrant_gc use_rslora use_swanlab "
    "use_unsloth use_unsloth_gc use_v1_kernels val_size video_fps video_max_pixels video_maxlen "
    "video_min_pixels vllm_config vllm_enforce_eager vllm_gpu_util vllm_max_lora_rank vllm_maxlen ";

class LlamaFactoryFieldsTest : public ForeignDatasetsTest {
 protected:
  void SetUp() override {
    folder_.write("dataset_info.json", R"({"a": {"file_name": "a.json"}})");
    start_ = "dataset_dir: " + folder_.path().string() + "\n";
  }
  std::string start_;
};

TEST_F(LlamaFactoryFieldsTest, NoneIsUnknown) {
  std::istringstream names(kFieldsOfLlamaFactory);
  for (std::string name; names >> name;) {
    // Null sets nothing, or is refused by name; the name of a setting has to be known.
    const std::string required = name == "dataset" || name == "dataset_dir" ? "" : "dataset: a\n" + start_;
    try {
      apply(required + name + ": null\n");
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AnyOf(HasSubstr("unknown setting '" + name + "': "),
                                      HasSubstr(name + ": expected"), HasSubstr("--" + name + " ")));
      EXPECT_THAT(error.what(), Not(HasSubstr("lists them"))) << "the reason is missing";
    }
  }
}

TEST_F(LlamaFactoryFieldsTest, EachThatIsNotHonouredSaysWhy) {
  RunSettings spec;
  FlagTable table;
  declare_training_flags(&table, &spec);
  int64_t num_refused = 0;
  int64_t num_ignored = 0;
  std::istringstream names(kFieldsOfLlamaFactory);
  for (std::string name; names >> name;) {
    const Flag* flag = table.find(name);
    if (flag == nullptr || flag->status == FlagStatus::kHonoured) continue;
    EXPECT_FALSE(flag->note.empty()) << name;
    ++(flag->status == FlagStatus::kRefused ? num_refused : num_ignored);
  }
  EXPECT_GT(num_refused, 30);
  EXPECT_GT(num_ignored, 100);
}

TEST_F(LlamaFactoryFieldsTest, WhatChangesTheResultIsRefusedUnlessItIsTheDefault) {
  const std::string start = start_ + "dataset: a\n";
  for (const char* setting :
       {"use_galore: true", "pissa_init: true", "rope_scaling: yarn", "resize_vocab: true",
        "use_dft_loss: true", "ignore_pad_token_for_loss: false", "enable_thinking: false",
        "use_llama_pro: true", "shift_attn: true", "loraplus_lr_ratio: 16", "tool_format: qwen", "stage: dpo",
        "finetuning_type: freeze", "fp8: true", "split_special_tokens: true", "moe_aux_loss_coef: 0.001"}) {
    const std::string what = error_of([&] { apply(start + setting + "\n"); }).what();
    EXPECT_THAT(what, AnyOf(HasSubstr("not supported"), HasSubstr("expected"))) << setting;
  }
  apply(
      start +
      "use_galore: false\npissa_init: false\nenable_thinking: true\nstage: sft\nfp8: false\ngalore_rank: 16\n"
      "resize_vocab: false\ntemperature: 0.95\nuse_unsloth: false\n");
}

}  // namespace
}  // namespace tessera
