#include "arguments/foreign/foreign_names.h"

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr ForeignNames means(const char* here, const char* names) { return {names, here, nullptr}; }
constexpr ForeignNames missing(const char* names, const char* note) { return {names, nullptr, note}; }

constexpr ForeignNames kNames[] = {
    // Model and data.
    means("model",
          "base_model_config model_path model_dir model_folder pretrained_model_name_or_path "
          "pretrained_model hf_model model_base model_name m repo_id model_id hf_repo"),
    means("tokenizer", "tokenizer_path tokenizer_dir tokenizer_file tokenizer_model"),
    means("dataset",
          "datasets data train_data train_dataset train_files train_path training_data data_path data_file "
          "data_files dataset_path dataset_file input input_file f"),
    means("eval_dataset",
          "eval_data eval_file eval_files eval_dataset_path val_data val_dataset val_file valid_data "
          "validation_data validation_dataset validation_files test_data test_datasets test_file"),
    means("text_column", "text_field text_key column_text json_keys"),
    means("text_per_line", "line_by_line"),
    means("max_length",
          "seq_len seq_length max_seq_len sequence_length max_sequence_length "
          "context_length context_size ctx ctx_size n_ctx c model_max_length row_length"),
    means("packing", "pack_sequences packed pack"),
    means("shuffle", "shuffle_data sample_shuffle"),
    means("cache_dir", "data_cache_path"),
    means("config", "config_file config_path"),
    means("deepspeed", "deepspeed_config ds_config deepspeed_file"),
    // Batch and length of the run.
    means("per_device_train_batch_size",
          "batch_size batch b mbs micro_batch micro_batch_size_per_gpu train_batch_size "
          "train_micro_batch_size train_micro_batch_size_per_gpu "
          "per_device_batch_size device_batch_size"),
    means("per_device_eval_batch_size", "val_batch_size eval_micro_batch_size"),
    means("global_batch_size", "global_batch total_batch_size effective_batch_size gbs"),
    means("gradient_accumulation_steps",
          "grad_accum grad_acc grad_accum_steps grad_acc_steps gradient_accumulation accumulate_grad_batches "
          "accumulation_steps accum_steps gas"),
    means("num_train_epochs", "epochs epoch n_epochs max_epochs train_epochs"),
    means("max_steps",
          "steps num_steps n_steps total_steps train_steps num_train_steps max_train_steps "
          "num_training_steps iters max_iters train_iters num_iters iterations adam_iter"),
    // Optimizer.
    means("optim", "optimizer_type optimizer_name"),
    means("learning_rate", "lr base_lr max_lr peak_lr adam_alpha"),
    means("lr_scheduler_type", "lr_schedule scheduler schedule scheduler_type lr_decay_style decay_style"),
    means("warmup_steps",
          "num_warmup_steps n_warmup_steps warmup warmup_iters lr_warmup_steps lr_warmup_iters"),
    means("warmup_ratio", "warmup_fraction lr_warmup_fraction lr_warmup_ratio warmup_proportion"),
    means("weight_decay", "wd decay adam_weight_decay"),
    means("adam_beta1", "beta1 adam_b1"),
    means("adam_beta2", "beta2 adam_b2"),
    means("adam_epsilon", "eps epsilon adam_eps optimizer_eps"),
    means("max_grad_norm",
          "clip_grad clip_grad_norm grad_clip gradient_clip gradient_clip_val gradient_clipping "
          "grad_norm_clip max_norm"),
    means("label_smoothing_factor", "label_smoothing"),
    means("seed", "random_seed rng_seed manual_seed s"),
    // Precision and machine.
    means("dtype", "precision compute_dtype model_dtype param_dtype mixed_precision compute_type"),
    means("bf16", "bfloat16 use_bf16"),
    means("gradient_checkpointing",
          "use_checkpointing "
          "enable_gradient_checkpointing enable_activation_checkpointing recompute recompute_activations"),
    means("num_threads",
          "threads n_threads t nthreads num_cpu_threads cpu_threads num_cpu_threads_per_process"),
    means("zero_stage", "zero zero_opt_stage zero3"),
    means("ddp_timeout", "dist_timeout distributed_timeout timeout"),
    // Logging, evaluation, output.
    means("logging_steps", "log_steps log_interval log_every log_every_n_steps log_freq logging_interval"),
    means("eval_steps", "eval_interval eval_every eval_freq val_interval val_check_interval"),
    means("output_dir",
          "output output_path output_folder out out_dir outdir save_dir save_path checkpoint_dir o"),
    means("save_steps",
          "save_interval save_every save_freq save_every_n_steps checkpoint_steps checkpointing_steps "
          "checkpoint_interval"),
    means("save_total_limit",
          "save_limit save_top_k max_checkpoints keep_checkpoints keep_last_n checkpoints_total_limit"),
    means("resume_from_checkpoint",
          "resume resume_from resume_checkpoint resume_training auto_resume auto_resume_from_checkpoints "
          "load_checkpoint load_ckpt checkpoint_in"),
    // What Tessera does not have.
    means("finetuning_type", "lora"),
    means("use_rslora", "rslora"),
    missing("qlora qlora_* dora loraplus_* pissa_*",
            "of adapters there is LoRA as Hu et al. describe it, on weights in bfloat16, float32, int8 or "
            "nf4: see finetuning_type, lora_* and quantization_bit"),
    missing("freeze_* unfrozen_parameters num_layer_trainable badam_*",
            "training only part of the weights is not supported: leave it out"),
    missing("bnb_config quantization quantization_config quantize* quant gptq gptq_* awq* use_4bit use_8bit "
            "load_in_fp8 fp8_*",
            "of weights only those beside LoRA adapters are quantised: see quantization_bit; for 8-bit "
            "optimizer state set optim: adamw_8bit"),
    missing("gguf gguf_file gguf_path",
            "a model is read from a Hugging Face folder (config.json, *.safetensors), not from GGUF; tessera "
            "export "
            "writes GGUF"),
    missing("revision", "it follows the name of a model on the Hub: org/name@revision"),
    missing("hf_token hf_hub_token use_auth_token token hf_use_auth_token",
            "HF_TOKEN in the environment, or 'hf auth login', sets the token"),
    missing("download_dir", "HF_HUB_CACHE in the environment sets the folder of downloads"),
    missing("dataset_split dataset_id data_config split",
            "they are parts of a name on the Hub: --dataset org/name:config/split"),
    means("dataset_format", "dataset_type formatting"),
    means("column_mapping",
          "prompt_column response_column instruction_column output_column conversation_column "
          "messages_column field_messages"),
    means("assistant_only_loss", "mask_history roles_to_train train_on_responses_only"),
    missing(
        "apply_chat_template default_system system_prompt instruction_template response_template "
        "prompt_template",
        "conversations go through the model's chat template, or the one of --chat_template; a system message "
        "is a part of the data; docs/data.md"),
    missing("dpo dpo_* ppo ppo_* kto kto_* orpo orpo_* simpo_* grpo grpo_* rlhf pref_* reward_* "
            "ref_model_* num_generations",
            "training is always on the next token (pre-training, supervised fine-tuning): leave it out; the "
            "stage of ZeRO is zero_stage"),
    missing("wandb use_wandb swanlab swanlab_* comet_* use_comet neptune_* clearml_* dvclive_*",
            "this service is not supported: leave it out; report_to lists those that are, and metrics.jsonl "
            "in output_dir has every step"),
    missing("tensorboard use_tensorboard enable_tensorboard",
            "report_to tensorboard writes event files, into logging_dir"),
    means("logging_dir", "tensorboard_dir tensorboard_log_dir tensorboard_logdir tb_log_dir save_tb_folder"),
    missing(
        "mlflow mlflow_* use_mlflow* hf_mlflow_*",
        "report_to mlflow reports to the server or folder of MLFLOW_TRACKING_URI in the environment, under "
        "MLFLOW_EXPERIMENT_NAME and run_name"),
    missing("val_size val_set_size validation_split eval_ratio valid_ratio test_size",
            "a share of rows for evaluation is given in percent: validation_split_percentage"),
    missing("max_samples max_train_samples max_eval_samples num_samples",
            "all rows of the files are used: pass smaller files, or end the run with max_steps"),
    missing(
        "special_tokens added_tokens_overrides new_special_tokens add_special_tokens_to_vocab",
        "special tokens are those of the tokenizer's files, and no padding token is needed: leave it out"),
    missing("evals_per_epoch",
            "evaluations are not counted per epoch: set eval_strategy epoch, or eval_steps, which may be a "
            "fraction of all steps"),
    missing("saves_per_epoch",
            "checkpoints are not counted per epoch: set save_strategy epoch, or save_steps, which may be a "
            "fraction of all steps"),
    missing(
        "tensor_parallel* tensor_model_parallel_size tp_size tp pipeline_parallel* "
        "pipeline_model_parallel_size pp_size pp expert_parallel* ep_size",
        "tensor, pipeline and expert parallelism are not supported: ranks split the rows of a step, or "
        "with context_parallel_size each row, and zero_stage shards gradients, optimizer state and weights"),
    means("context_parallel_size",
          "cp_size cp context_parallel context_parallel_degree sequence_parallel_size "
          "sequence_parallel_degree ulysses_size ulysses_sequence_parallel_size"),
    missing("gpu gpus gpu_* n_gpu n_gpu_layers num_gpus ngl device_map device_id devices cuda* max_memory",
            "training runs on the processor, or with device cuda on the first card that CUDA_VISIBLE_DEVICES "
            "leaves"),
    means("offload_optimizer_device", "cpu_offload offload optimizer_offload"),
    means("offload_dir", "nvme_path offload_path"),
    means("offload_param_device", "param_offload"),
    missing(
        "offload_state_dict offload_buffers offload_weights offload_model offload_states",
        "offload_optimizer_device nvme keeps the optimizer's state on a disk, offload_param_device nvme the "
        "weights of layers"),
    missing("unsloth unsloth_* use_unsloth_* liger "
            "xformers flash_attention_2 use_flash_attention use_flash_attention_2 "
            "use_flash_attn s2_attention",
            "kernels are chosen automatically: leave it out"),
};

// Names that mean the same here, taken as they are.
struct Spelling {
  const char* here;
  const char* names;  // separated by spaces
};
constexpr Spelling kSpellings[] = {
    // Axolotl.
    {"model", "base_model"},
    {"max_length", "sequence_len"},
    {"packing", "sample_packing"},
    {"num_train_epochs", "num_epochs"},
    {"per_device_train_batch_size", "micro_batch_size"},
    {"per_device_eval_batch_size", "eval_batch_size"},
    {"optim", "optimizer"},
    {"lr_scheduler_type", "lr_scheduler"},
    {"cache_dir", "dataset_prepared_path"},
    {"gradient_checkpointing", "activation_checkpointing"},
    // LLaMA-Factory, Unsloth. TRL's max_seq_length and dataset_text_field are declared with their flags.
    {"max_length", "cutoff_len"},
    {"cache_dir", "tokenized_path"},
    {"bf16", "pure_bf16"},
    {"gradient_checkpointing", "use_gradient_checkpointing"},
    {"early_stopping_patience", "early_stopping_steps"},
};

// A flag of another program that sets one of ours: `apply` receives its value.
template <typename T>
void declare_translated(FlagTable* table, const char* name, T default_value, const char* help,
                        std::function<void(const T& value)> apply) {
  const auto value = std::make_shared<T>(std::move(default_value));
  Flag& flag = table->add(name, value.get(), help);
  flag.set = [value, set = flag.set, apply = std::move(apply)](const std::vector<std::string>& values) {
    set(values);
    apply(*value);
  };
  flag.get = nullptr;  // training_args.json has the one that it sets
}

}  // namespace

std::span<const ForeignNames> training_names() { return kNames; }

void declare_other_spellings(FlagTable* table, TrainingArguments* args) {
  for (const Spelling& spelling : kSpellings) {
    std::istringstream names(spelling.names);
    for (std::string name; names >> name;) table->add_alias(spelling.here, name);
  }
  declare_translated<bool>(table, "group_by_length", false,
                           "If true, train_sampling_strategy group_by_length.", [args](bool value) {
                             if (value) args->train_sampling_strategy = SamplingStrategy::kGroupByLength;
                           });
  table->begin_section("Arguments of LLaMA-Factory");
  declare_translated<std::string>(
      table, "stage", "sft",
      "Training is always what LLaMA-Factory calls pt or sft; no other stage is supported.",
      [](const std::string& value) {
        if (value == "pt" || value == "sft") return;
        fail(
            ExitCode::kUsage,
            "--stage {} is not supported: training is always on the next token, pt or sft; the stage of ZeRO "
            "is zero_stage",
            printable(value));
      });
  declare_translated<bool>(
      table, "neat_packing", false,
      "If true, sets packing with packing_strategy greedy_knapsack, unless another one is given.",
      [args](bool value) {
        if (!value) return;
        args->packing = true;
        if (args->packing_strategy == PackingStrategy::kAuto)
          args->packing_strategy = PackingStrategy::kGreedyKnapsack;
      });
  declare_translated<bool>(table, "disable_shuffling", false, "The opposite of shuffle.",
                           [args](bool value) { args->shuffle = !value; });
  declare_translated<bool>(table, "disable_gradient_checkpointing", true,
                           "The opposite of gradient_checkpointing.",
                           [args](bool value) { args->gradient_checkpointing = !value; });
}

}  // namespace tessera
