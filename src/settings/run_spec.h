// The settings of a run: one structure for each part of the program that carries it out. The defaults are
// those of Hugging Face's Trainer 5. settings/ declares the flag of every field and fills in RunSettings;
// once they are resolved they are a RunSpec, which nothing changes, and nothing below settings/ knows how a
// setting is spelled. docs/flags.md describes every field.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "comm/network/link/fabric_name.h"
#include "data/dataset.h"
#include "data/rows/batch_plan.h"
#include "io/async_file.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "settings/choices.h"
#include "settings/foreign/script_settings.h"
#include "settings/fsdp/fsdp_words.h"
#include "settings/run/data_settings.h"
#include "shard/layout/outer_settings.h"
#include "tensor/device_kind.h"
#include "tensor/dtype.h"

namespace tessera {

struct ModelConfig;

struct ModelSource {
  std::string folder;
  std::string tokenizer;  // "" = the model's folder
  // The names on the Hub by which the two were given; training_args.json has these, the same on every node.
  std::map<std::string, std::string> hub_names;
};

// The conversion of files to rows of the run, and the order in which they are trained on.
struct DataSpec : DataArguments {
  std::vector<std::string> dataset;
  std::string dataset_spool;  // in place of dataset
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
  SamplingStrategy sampling_strategy = SamplingStrategy::kRandom;
  bool drop_last = false;
  std::optional<int64_t> seed;  // of the order; unset = RunSettings::seed
  std::string cache_dir;

  // The form of the rows trained on, and of those for evaluation.
  Packing packing_mode() const;
  Packing eval_packing_mode() const;
  // Most tokens a row may have: max_length (kMaxRowLength: as many as the rows of the dataset have); without
  // it, max_position_embeddings for rows of token ids and encoders, and at most 1024 of them for text. Source
  // and target together have limits of their own.
  int64_t row_limit(const ModelConfig& config) const;
};

// The rows of a step, and how many steps there are.
struct BatchSpec {
  int64_t rows_per_device = 8;     // of a micro-batch, on each rank
  int64_t accumulation_steps = 1;  // once resolved, derived from global_rows if that is set
  std::optional<int64_t> global_rows;
  double num_epochs = 3;
  int64_t max_steps = -1;  // above 0: in place of num_epochs
};

// The loss that is minimized.
struct ObjectiveSpec {
  bool average_tokens_across_devices = true;
  double label_smoothing = 0;
  std::optional<double> neftune_alpha;
};

struct ClippingSpec {
  double max_norm = 1;  // 0 = gradients are not clipped
  ClipMode mode = ClipMode::kGlobal;

  // Gradients are clipped by the norm of all of them, which is known once every pass is done.
  bool needs_norm_of_step() const { return mode == ClipMode::kGlobal && max_norm > 0; }
};

// Checks made in every step.
struct GuardSpec {
  LossSpikePolicy loss_spike_policy = LossSpikePolicy::kWarn;
  int64_t loss_spike_window = 128;
  double loss_spike_sigmas = 6;
  int64_t replay_check_steps = 0;  // 0 = never
};

struct LoraSpec {
  FinetuningType finetuning_type = FinetuningType::kFull;
  int64_t rank = 8;
  std::optional<double> alpha;  // unset = twice the rank
  double dropout = 0;
  std::vector<std::string> targets = {"all"};
  std::vector<std::string> exclude_modules;
  std::vector<std::string> layers_to_transform;
  std::vector<std::string> layers_pattern;
  bool use_rslora = false;
  // Values for modules that differ from the rest, by ends of names; the first that fits counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::string adapter;  // the folder of one to continue
};
// The form that --rank_pattern and --alpha_pattern take: a JSON object, "" = none. Error(kBadConfig).
std::vector<std::pair<std::string, int64_t>> parse_rank_pattern(const std::string& json);
std::vector<std::pair<std::string, double>> parse_alpha_pattern(const std::string& json);

// The form of the weights beside adapters.
struct BaseSpec {
  std::optional<int64_t> bits;
  bool load_in_8bit = false;
  bool load_in_4bit = false;
  QuantizationType quant_type = QuantizationType::kNf4;
  std::optional<bool> double_quant;  // unset = as the program whose flag asks for 4 bits

  int64_t bits_wanted() const { return bits ? *bits : load_in_8bit ? 8 : load_in_4bit ? 4 : 0; }  // 0 = all
};

struct PrecisionSpec {
  DType dtype = DType::kBF16;  // kTrainingDTypeWords
  std::optional<bool> bf16;
  bool bf16_full_eval = false;
  std::optional<DType> save_dtype;  // set once resolved

  std::string_view dtype_word() const { return word_of(kTrainingDTypeWords, dtype); }
  DType export_dtype() const { return save_dtype.value_or(dtype); }
};

// The state kept in memory, recomputed, or kept on a disk, and the time at which weights are updated.
struct PlacementSpec {
  bool gradient_checkpointing = false;
  CheckpointingMode checkpointing_mode = CheckpointingMode::kFull;
  AutoChoice merge_micro_batches = AutoChoice::kAuto;
  AutoChoice pack_weights = AutoChoice::kAuto;
  bool optimizer_in_backward = false;
  OffloadDevice optimizer_device = OffloadDevice::kNone;
  OffloadDevice param_device = OffloadDevice::kNone;
  std::string offload_dir;  // once resolved: set if it is used, or may be with fit
  AsyncFileSettings transfers;
  bool fit = false;  // the planner chooses
  FitChoice fit_choice = FitChoice::kBest;
  std::optional<int64_t> fit_memory_bytes;  // unset = what is free
  std::optional<int64_t> fit_disk_bytes;

  // The inputs of layers wait for the backward pass in a scratch file.
  bool offloads_inputs() const {
    return gradient_checkpointing && checkpointing_mode == CheckpointingMode::kOffload;
  }
  // The host updates the weights of a run on a card.
  bool optimizer_is_on_host() const {
    return optimizer_device != OffloadDevice::kNone || param_device != OffloadDevice::kNone;
  }
};

// The device and threads that compute.
struct MachineSpec {
  DeviceKind device = DeviceKind::kCpu;
  int64_t num_threads = 0;  // 0 = one for every core
};

// The division of parameters among the ranks, and their traffic.
struct ShardingSpec {
  std::optional<int64_t> stage;  // of ZeRO; set once resolved
  GatherChoice gather_schedule = GatherChoice::kAuto;
  std::optional<DType> grad_accum_dtype;  // set once resolved
  bool quantized_weights = false;
  std::optional<GradientCode> quantized_gradients;
  LoadOnce load_once = LoadOnce::kPerNode;
  int64_t context_parallel_size = 1;               // ranks that share rows (context/context_team.h)
  AutoChoice expert_parallel = AutoChoice::kAuto;  // experts divided among nodes (plan/expert_plan.h)
  // Set only by a DeepSpeed file. Sizes are in elements; unset ones are derived from the hidden size.
  int64_t max_live_parameters = 1'000'000'000;
  std::optional<int64_t> prefetch_bucket_size;
  std::optional<int64_t> persistence_threshold;
  bool overlap_comm = true;
  std::optional<DType> communication_dtype;  // once resolved: BF16 or F32

  DType accumulation_dtype() const { return grad_accum_dtype.value_or(DType::kF32); }  // of gradients
  // The values Hugging Face's Trainer fills in for "auto": 0.9 hidden^2 and 10 hidden.
  int64_t prefetch_elements(int64_t hidden_size) const;
  int64_t persistence_threshold_elements(int64_t hidden_size) const;
};

struct NetworkSpec {
  int64_t timeout_s = 60;
  int64_t connections = 4;
  Fabric fabric;
  std::string interface;
};

// The reports of the run. Steps below 1 are a fraction of all steps, here and below.
struct ReportingSpec {
  IntervalStrategy logging_strategy = IntervalStrategy::kSteps;
  double logging_steps = 500;
  bool logging_first_step = false;
  TokensSeen tokens_seen = TokensSeen::kNo;
  bool measure_peak = true;
  bool disable_tqdm = false;
  bool quiet = false;
  std::optional<LogLevel> log_level;    // kLogLevelWords
  std::optional<int64_t> metrics_port;  // serving_port() has its default
  std::string metrics_host = "127.0.0.1";
  double health_timeout_s = 0;  // 0 = derived
  std::vector<ReportTo> report_to = {ReportTo::kJsonl};
  std::string logging_dir;  // "" = the default
  std::string run_name;     // "" = as output_dir
  // Folders of DeepSpeed's monitors; nullopt = off.
  std::optional<std::string> monitor_tensorboard_dir;
  std::optional<std::string> monitor_csv_dir;

  bool reports_to(ReportTo sink) const {
    return std::find(report_to.begin(), report_to.end(), sink) != report_to.end();
  }
  LogLevel lowest_log_level() const;
};

struct EvaluationSpec {
  int64_t rows_per_device = 8;
  IntervalStrategy strategy = IntervalStrategy::kNo;
  std::optional<double> steps;
  double delay = 0;
  bool on_start = false;
  std::vector<std::string> choices;       // files of multiple-choice questions, scored with every evaluation
  std::string metric;                     // for the best model, "" = none; once resolved: with eval_
  std::optional<bool> greater_is_better;  // set once resolved, if there is a metric
  bool load_best_model = false;
  std::optional<int64_t> early_stopping_patience;  // evaluations; unset = a run does not stop early
  double early_stopping_threshold = 0;

  bool evaluates() const { return strategy != IntervalStrategy::kNo || on_start; }
};

struct SavingSpec {
  SaveStrategy strategy = SaveStrategy::kSteps;
  double steps = 500;
  std::optional<int64_t> total_limit;
  bool in_background = true;
  std::optional<int64_t> bytes_per_second;  // of all ranks together; unset = no limit
  bool on_sigterm = true;
  int64_t peer_snapshot_steps = 0;  // 0 = none

  // A checkpoint may be in progress while training continues.
  bool saves_in_background() const { return in_background && strategy != SaveStrategy::kNo; }
};

// The run or checkpoint to continue.
struct ResumeSpec {
  enum class From {
    kNothing,
    kNewest,       // checkpoint of output_dir, which must have one
    kNewestIfAny,  // or nothing
    kFolder,
  };
  From from = From::kNothing;
  std::string folder;     // with kFolder
  bool by_agent = false;  // set by read_environment()

  bool resumes() const { return from != From::kNothing; }
  bool by_name() const { return from == From::kFolder; }
};
// The form that --resume_from_checkpoint takes: true, auto, a folder; false, no, none or "" for nothing.
ResumeSpec parse_resume(const std::string& text);
std::string resume_text(const ResumeSpec& resume);

// Set by `tessera launch`, not by flags; see read_environment().
struct LaunchSpec {
  std::string id;                                            // "" without an agent
  bool is_restart = false;                                   // the agent has started the ranks before
  double grace_s = std::numeric_limits<double>::infinity();  // until the agent kills its ranks
  int64_t num_restarts = 0;                                  // World::num_restarts(); set by the command
};

enum class SettingOrigin {
  kDefault,
  kFlag,
  kFile,         // a configuration file
  kEnvironment,  // TESSERA_RESUME
  kDeepSpeed,
  kFsdp,
  kCheckpoint,  // of the run that is resumed
  kDerived,     // from other settings or the number of ranks
};

// Where a setting was given.
struct SettingSource {
  SettingOrigin origin = SettingOrigin::kFlag;
  // "run.yaml:7", "ds.json: zero_optimization.stage", "--fsdp full_shard"; "" on the command line
  std::string where;
};

// The files from which settings were read, and what came from them.
struct SettingSources {
  std::string deepspeed;  // a DeepSpeed configuration; read by read_run_spec()
  std::string ds_compat = "0.19";
  std::string config;      // a configuration file; read by read_setting_files()
  ScriptArguments script;  // translated by read_setting_files(), as is the next
  FsdpArguments fsdp;
  // Settings that are given as JSON, by their names: training_args.json has their text as it was given.
  std::map<std::string, std::string> json_texts;
  // Once resolved: the settings that the command line, the environment or a file gives, by their names.
  std::map<std::string, SettingSource, std::less<>> given;
};

// The settings while they are being read: flags, files and defaults write to its fields. Only settings/ and
// the commands that read flags may name this type (tests/layering_test.cc).
struct RunSettings {
  ModelSource model;
  DataSpec data;
  BatchSpec batch;
  ObjectiveSpec objective;
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  ClippingSpec clipping;
  GuardSpec guards;
  LoraSpec lora;
  BaseSpec base;
  PrecisionSpec precision;
  PlacementSpec placement;
  MachineSpec machine;
  ShardingSpec sharding;
  OuterSettings outer;  // sync_every 0: nodes train together in every step
  NetworkSpec network;
  ReportingSpec reporting;
  EvaluationSpec evaluation;
  SavingSpec saving;
  ResumeSpec resume;
  LaunchSpec launch;
  SettingSources sources;
  int64_t seed = 42;
  std::string output_dir = "trainer_output";
  double grace_period_s = 30;

  // In a pass that computes the norm by which the gradients of the step are clipped, nothing is updated yet.
  bool computes_norm_first() const {
    return placement.optimizer_in_backward && clipping.needs_norm_of_step();
  }
  // A restart continues only what its own launch began: from the folder asked for, or from scratch.
  bool resumes_own_launch_only() const { return resume.by_name() || (resume.by_agent && !launch.id.empty()); }
  // From a signal to the end of the process.
  double time_to_end_s() const { return std::min(grace_period_s, launch.grace_s); }
  uint64_t shuffle_seed() const { return static_cast<uint64_t>(data.seed.value_or(seed)); }
  // Everything except the number of rows. `world_size` counts ranks or teams with rows of their own.
  BatchPlanOptions batch_options(int64_t world_size) const;
};

// The settings of a run, completed by read_run_spec(). A run that differs, because --fit, a search or a
// checkpoint decided so, has another RunSpec (spec_variants.h).
using RunSpec = const RunSettings;

}  // namespace tessera
