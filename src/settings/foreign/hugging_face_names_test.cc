// Names and defaults of Hugging Face's TrainingArguments that must never be unknown.
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "support/settings/arguments_test_support.h"

namespace tessera {
namespace {

constexpr const char* kHuggingFaceNames =
    "output_dir per_device_train_batch_size per_device_eval_batch_size num_train_epochs max_steps "
    "learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim optim_args "
    "weight_decay adam_beta1 adam_beta2 adam_epsilon gradient_accumulation_steps max_grad_norm "
    "average_tokens_across_devices label_smoothing_factor bf16 fp16 bf16_full_eval fp16_full_eval tf32 "
    "gradient_checkpointing gradient_checkpointing_kwargs torch_compile use_liger_kernel use_cache "
    "neftune_noise_alpha auto_find_batch_size logging_strategy logging_steps logging_first_step "
    "logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica disable_tqdm "
    "prediction_loss_only do_train do_eval do_predict eval_strategy evaluation_strategy eval_steps "
    "eval_delay eval_on_start eval_accumulation_steps save_strategy save_steps save_total_limit "
    "save_only_model save_on_each_node enable_jit_checkpoint load_best_model_at_end "
    "metric_for_best_model greater_is_better ignore_data_skip resume_from_checkpoint seed data_seed "
    "full_determinism use_cpu no_cuda dataloader_drop_last dataloader_num_workers "
    "dataloader_pin_memory dataloader_prefetch_factor remove_unused_columns label_names "
    "train_sampling_strategy group_by_length length_column_name ddp_backend ddp_timeout "
    "ddp_find_unused_parameters ddp_bucket_cap_mb fsdp fsdp_config deepspeed report_to run_name "
    "project trackio_space_id trackio_bucket_id trackio_static_space_id push_to_hub hub_model_id "
    "hub_strategy hub_token debug skip_memory_metrics accelerator_config overwrite_output_dir "
    "logging_dir use_ipex jit_mode_eval past_index per_gpu_train_batch_size per_gpu_eval_batch_size "
    "fp16_backend half_precision_backend include_tokens_per_second include_inputs_for_metrics "
    "tpu_num_cores push_to_hub_token model model_name_or_path dataset train_file eval_dataset "
    "validation_file text_column text_per_line max_length max_seq_length block_size packing shuffle "
    "dtype save_dtype num_threads tokenizer cache_dir skip_invalid_utf8 config";

TEST_F(ArgumentsTest, EveryHuggingFaceNameIsKnown) {
  std::istringstream names(kHuggingFaceNames);
  std::string name;
  while (names >> name) EXPECT_NE(table_.find(name), nullptr) << name;
}

TEST_F(ArgumentsTest, DefaultsAreHuggingFaces) {
  const auto expect_default = [&](const char* name, const char* text) {
    EXPECT_EQ(table_.find(name)->default_text, text) << name;
  };
  expect_default("output_dir", "trainer_output");
  expect_default("per_device_train_batch_size", "8");
  expect_default("num_train_epochs", "3");
  expect_default("max_steps", "-1");
  expect_default("learning_rate", "5e-05");
  expect_default("lr_scheduler_type", "linear");
  expect_default("adam_beta2", "0.999");
  expect_default("adam_epsilon", "1e-08");
  expect_default("max_grad_norm", "1");
  expect_default("logging_steps", "500");
  expect_default("eval_strategy", "no");
  expect_default("save_strategy", "steps");
  expect_default("save_steps", "500");
  expect_default("seed", "42");
  expect_default("data_seed", "");
  expect_default("dtype", "bfloat16");
}

}  // namespace
}  // namespace tessera
