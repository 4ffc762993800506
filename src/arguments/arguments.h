// The settings of a training run: Hugging Face's TrainingArguments by name, default and meaning, and
// Tessera's own.
//
// The exit code depends on where a wrong setting comes from: a value that is wrong by itself is kUsage on the
// command line and kBadConfig in a configuration file; settings that contradict each other or the model are
// kBadConfig.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "arguments/choices.h"
#include "arguments/foreign/script_arguments.h"
#include "arguments/run/data_arguments.h"
#include "base/flags.h"
#include "base/log.h"
#include "comm/world.h"
#include "data/dataset.h"
#include "data/rows/batch_plan.h"
#include "optim/optimizer.h"
#include "tensor/device_kind.h"
#include "tensor/dtype.h"

namespace tessera {

// Defaults are those of Hugging Face's Trainer 5; docs/flags.md describes every field.
struct TrainingArguments : DataArguments {
  // Model and data.
  std::string model;
  std::string tokenizer;  // "" = the model's folder
  // The names on the Hub by which model and tokenizer were given; training_args.json has these, the same on
  // every node.
  std::map<std::string, std::string> hub_names;
  std::vector<std::string> dataset;
  std::vector<std::string> eval_dataset;
  double validation_split_percentage = 0;
  bool streaming = false;
  int64_t streaming_buffer_rows = 16384;
  std::optional<int64_t> max_length;
  bool allow_truncation = false;
  bool packing = false;
  PackingStrategy packing_strategy = PackingStrategy::kAuto;  // by the rows (Packing::kByRows)
  std::optional<bool> eval_packing;                           // unset = as packing
  bool packing_cross_document_attention = false;
  bool shuffle = true;
  SamplingStrategy train_sampling_strategy = SamplingStrategy::kRandom;
  bool dataloader_drop_last = false;
  std::string cache_dir;

  // Batch and length of the run.
  int64_t per_device_train_batch_size = 8;
  int64_t per_device_eval_batch_size = 8;
  bool average_tokens_across_devices = true;
  int64_t gradient_accumulation_steps = 1;  // once resolved, derived from global_batch_size if that is set
  std::optional<int64_t> global_batch_size;
  double num_train_epochs = 3;
  int64_t max_steps = -1;

  // Optimizer.
  std::string optim = "adamw_torch";
  double learning_rate = 5e-5;
  std::string lr_scheduler_type = "linear";
  std::string lr_scheduler_kwargs;
  double warmup_steps = 0;
  std::optional<double> warmup_ratio;
  double weight_decay = 0;
  bool weight_decay_norms = false;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double muon_momentum = 0.95;
  MuonRate muon_adjust_lr_fn = MuonRate::kMatchRmsAdamw;
  double max_grad_norm = 1;
  ClipMode clip_mode = ClipMode::kGlobal;
  bool optimizer_in_backward = false;
  LossSpikePolicy loss_spike_policy = LossSpikePolicy::kWarn;
  int64_t loss_spike_window = 128;
  double loss_spike_sigmas = 6;
  int64_t replay_check_steps = 0;
  double label_smoothing_factor = 0;
  std::optional<double> neftune_noise_alpha;
  int64_t seed = 42;
  std::optional<int64_t> data_seed;

  // LoRA (lora_arguments.h).
  FinetuningType finetuning_type = FinetuningType::kFull;
  int64_t lora_rank = 8;
  std::optional<double> lora_alpha;  // unset = twice the rank
  double lora_dropout = 0;
  std::vector<std::string> lora_target = {"all"};
  std::vector<std::string> exclude_modules;
  std::vector<std::string> layers_to_transform;
  std::vector<std::string> layers_pattern;
  bool use_rslora = false;
  std::string rank_pattern;  // JSON, "" = none
  std::string alpha_pattern;
  std::string adapter_name_or_path;
  // quantization_arguments.h
  std::optional<int64_t> quantization_bit;
  bool load_in_8bit = false;
  bool load_in_4bit = false;
  std::string bnb_4bit_quant_type = "nf4";
  std::optional<bool> bnb_4bit_use_double_quant;  // unset = as the program whose flag asks for 4 bits

  // Precision and machine.
  DType dtype = DType::kBF16;  // kTrainingDTypeWords
  std::optional<bool> bf16;
  bool bf16_full_eval = false;
  std::optional<DType> save_dtype;  // set once resolved
  bool gradient_checkpointing = false;
  CheckpointingMode gradient_checkpointing_mode = CheckpointingMode::kFull;
  AutoChoice merge_micro_batches = AutoChoice::kAuto;
  AutoChoice pack_weights = AutoChoice::kAuto;
  OffloadDevice offload_optimizer_device = OffloadDevice::kNone;
  OffloadDevice offload_param_device = OffloadDevice::kNone;
  std::string offload_dir;  // once resolved: set if it is used, or may be with fit
  bool fit = false;         // plan/forms chooses the form of the run
  FitChoice fit_choice = FitChoice::kBest;
  std::string fit_memory;  // "" = what is free
  std::string fit_disk;
  int64_t aio_block_size = int64_t{1} << 20;
  int64_t aio_queue_depth = 32;
  DeviceKind device = DeviceKind::kCpu;
  int64_t num_threads = 0;
  bool measure_peak = true;

  // Several ranks.
  std::optional<int64_t> zero_stage;  // set once resolved
  GatherChoice gather_schedule = GatherChoice::kAuto;
  std::optional<DType> grad_accum_dtype;  // set once resolved
  bool zero_quantized_weights = false;
  GradientQuantization zero_quantized_gradients = GradientQuantization::kNone;
  LoadOnce load_weights_once = LoadOnce::kPerNode;
  int64_t sync_every = 0;  // 0 = every step (outer_arguments.h)
  int64_t num_fragments = 1;
  int64_t fragment_sync_delay = 0;
  double fragment_update_alpha = 0;
  double outer_learning_rate = 0.7;
  double outer_momentum = 0.9;
  int64_t context_parallel_size = 1;  // ranks that share rows (context_arguments.h)
  int64_t ddp_timeout = 60;           // seconds
  int64_t connections = 4;
  std::string fabric = "tcp";
  std::string interface;
  // Set only by a DeepSpeed file. Sizes are in elements; unset ones are derived from the hidden size.
  int64_t stage3_max_live_parameters = 1'000'000'000;
  std::optional<int64_t> stage3_prefetch_bucket_size;
  std::optional<int64_t> stage3_param_persistence_threshold;
  bool overlap_comm = true;
  std::optional<DType> communication_data_type;  // once resolved: BF16 or F32
  // Folders of DeepSpeed's monitors; nullopt = off.
  std::optional<std::string> monitor_tensorboard_dir;
  std::optional<std::string> monitor_csv_dir;

  // Logging, evaluation, saving. Steps below 1 are a fraction of all steps.
  IntervalStrategy logging_strategy = IntervalStrategy::kSteps;
  double logging_steps = 500;
  bool logging_first_step = false;
  TokensSeen include_num_input_tokens_seen = TokensSeen::kNo;
  bool disable_tqdm = false;
  std::optional<LogLevel> log_level;    // kLogLevelWords
  std::optional<int64_t> metrics_port;  // metrics_arguments.h
  std::string metrics_host = "127.0.0.1";
  double health_timeout = 0;                       // seconds; 0 = derived
  std::vector<std::string> report_to = {"jsonl"};  // none, or names of report_arguments.cc
  std::string logging_dir;                         // "" = the default
  std::string run_name;                            // "" = as output_dir
  bool quiet = false;
  IntervalStrategy eval_strategy = IntervalStrategy::kNo;
  std::optional<double> eval_steps;
  double eval_delay = 0;
  bool eval_on_start = false;
  std::vector<std::string> eval_choices;  // files of multiple-choice questions, scored with every evaluation
  std::string metric_for_best_model;      // "" = none; once resolved: with eval_
  std::optional<bool> greater_is_better;  // set once resolved, if there is a metric
  bool load_best_model_at_end = false;
  std::optional<int64_t> early_stopping_patience;  // evaluations; unset = a run does not stop early
  double early_stopping_threshold = 0;
  std::string output_dir = "trainer_output";
  SaveStrategy save_strategy = SaveStrategy::kSteps;
  double save_steps = 500;
  std::optional<int64_t> save_total_limit;
  bool async_save = true;
  std::string save_rate_limit;  // bytes per second of all ranks together, "" = unlimited
  bool save_on_sigterm = true;
  double grace_period_s = 30;
  int64_t peer_snapshot_steps = 0;     // 0 = none
  std::string resume_from_checkpoint;  // "" = no; once resolved: "", "true", "auto" or a folder

  // Set by `tessera launch`, not by flags; see read_launch_variables().
  std::string launch_id;                                           // "" without an agent
  bool is_restart = false;                                         // the agent has started the ranks before
  double agent_grace_s = std::numeric_limits<double>::infinity();  // until the agent kills its ranks
  int64_t num_restarts = 0;    // World::num_restarts(); set by the command
  bool agent_resumes = false;  // resume_from_checkpoint was set by apply_resume_variable()

  std::string deepspeed;  // a DeepSpeed configuration; read by resolve_training_arguments()
  std::string ds_compat = "0.19";
  std::string config;      // a configuration file; read by apply_config_file()
  ScriptArguments script;  // what apply_script_arguments() translates
  // Where the DeepSpeed file decided a setting, by its flag: "ds.json: zero_optimization.stage".
  std::map<std::string, std::string> deepspeed_origins;
  // Once resolved: the settings that the command line or a file gives, by their flags.
  std::set<std::string, std::less<>> given;

  // In a pass that computes the norm by which the gradients of the step are clipped, nothing is updated yet.
  bool computes_norm_first() const {
    return optimizer_in_backward && clip_mode == ClipMode::kGlobal && max_grad_norm > 0;
  }
  // The inputs of layers wait for the backward pass in a scratch file.
  bool offloads_inputs() const {
    return gradient_checkpointing && gradient_checkpointing_mode == CheckpointingMode::kOffload;
  }
  // A checkpoint may be in progress while training continues.
  bool saves_in_background() const { return async_save && save_strategy != SaveStrategy::kNo; }
  bool resumes() const { return !resume_from_checkpoint.empty(); }
  bool resumes_by_name() const {
    return resumes() && resume_from_checkpoint != "true" && resume_from_checkpoint != "auto";
  }
  // A restart continues only what its own launch began: from the folder asked for, or from scratch.
  bool resumes_own_launch_only() const { return resumes_by_name() || (agent_resumes && !launch_id.empty()); }
  // From a signal to the end of the process.
  double time_to_end_s() const { return std::min(grace_period_s, agent_grace_s); }
  int64_t save_bytes_per_second() const;  // 0 = no limit
  bool reports_to(std::string_view sink) const {
    return std::find(report_to.begin(), report_to.end(), sink) != report_to.end();
  }
  bool evaluates() const { return eval_strategy != IntervalStrategy::kNo || eval_on_start; }
  LogLevel lowest_log_level() const;
  DType export_dtype() const { return save_dtype.value_or(dtype); }
  DType accumulation_dtype() const { return grad_accum_dtype.value_or(DType::kF32); }  // of gradients
  // As Hugging Face's Trainer fills in "auto": 0.9 hidden^2 and 10 hidden.
  int64_t prefetch_elements(int64_t hidden_size) const;
  int64_t persistence_threshold_elements(int64_t hidden_size) const;
  // Of the rows trained on; of those for evaluation, with eval_packing.
  Packing packing_mode() const;
  Packing eval_packing_mode() const;
  // Most tokens a row may have: max_length (kMaxRowLength: as many as the rows of the dataset have); without
  // it, max_position_embeddings for rows of token ids and at most 1024 of them for text.
  int64_t row_limit(int64_t max_position_embeddings) const;
  // Everything but the number of rows. Its world size is that of ranks, or teams, with rows of their own.
  BatchPlanOptions batch_options(int64_t world_size) const;
  uint64_t shuffle_seed() const { return static_cast<uint64_t>(data_seed.value_or(seed)); }
  // Hugging Face's get_warmup_steps: warmup_steps when above 0, else the ratio, rounded up.
  int64_t num_warmup_steps(int64_t num_training_steps) const;
};

// Declares every flag of `tessera train` in `table`, bound to `args`, which must outlive it: the honoured
// ones, and the known ones that are ignored or refused.
void declare_training_flags(FlagTable* table, TrainingArguments* args);

// Ranks restarted by an agent resume from the last checkpoint: TESSERA_RESUME=auto sets
// resume_from_checkpoint unless something else has. Error(kBadConfig) for any other value.
void apply_resume_variable(const Environment& environment, FlagTable* table, TrainingArguments* args);
// Fills launch_id, is_restart and agent_grace_s. Error(kBadConfig).
void read_launch_variables(const Environment& environment, TrainingArguments* args);

// Call once all flags are set: applies the DeepSpeed file, fills in settings derived from others (dtype from
// bf16, eval_steps from logging_steps, ...) and refuses contradictions (kBadConfig). `table` knows which
// flags were given; batch sizes in a DeepSpeed file are for `world_size` ranks.
void resolve_training_arguments(const FlagTable& table, int64_t world_size, TrainingArguments* args);

// Again, once settings have changed that say where the state of a run is and when it is updated (plan/forms).
void resolve_form(const FlagTable& table, int64_t world_size, TrainingArguments* args);

// Steps of a logging, evaluation or saving interval: `interval` itself or, if below 1, that fraction of all
// steps, rounded up.
int64_t interval_in_steps(double interval, int64_t num_training_steps);

// The honoured settings as a JSON object, for training_args.json: indent 2, sorted, trailing newline.
std::string training_arguments_json(const TrainingArguments& args);

}  // namespace tessera
