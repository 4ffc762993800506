#include "settings/foreign/deepspeed_settings.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "settings/foreign/deepspeed_notes.h"
#include "settings/ranks/context_settings.h"

namespace tessera {
namespace {

// What changed between releases: gradient_clipping where the file has none, the highest rate of WarmupLR
// likewise, and whether OneCycle's stair counts are read.
struct Release {
  std::string_view name;
  double gradient_clipping;
  bool warmup_follows_optimizer;
  bool has_stairs;
};
constexpr Release kReleases[] = {
    {"0.19", 1, true, true},    {"0.16", 0, false, false},  {"0.19.0", 0, true, false},
    {"0.19.1", 0, true, false}, {"0.19.2", 0, true, false}, {"0.19.3", 1, true, false},
    {"0.19.4", 1, true, true},  {"0.19.5", 1, true, true},  {"0.19.6", 1, true, true},
    {"0.19.7", 1, true, true},  {"0.19.8", 1, true, true},
};

class DeepSpeedMerge {
 public:
  DeepSpeedMerge(const DeepSpeedConfig& config, const FlagTable& table, int64_t world_size, RunSpec* args)
      : config_(config),
        table_(table),
        world_size_(world_size),
        args_(args),
        release_(std::ranges::find(kReleases, args->sources.ds_compat, &Release::name)) {}

  void run() {
    if (config_.sequence_parallel_size) {
      merge_value("sequence_parallel_size", *config_.sequence_parallel_size, "context_parallel_size",
                  args_->sharding.context_parallel_size);
    }
    check_context_ranks(*args_, world_size_);
    merge_batch();
    merge_precision();
    merge_zero();
    merge_or_default("gradient_clipping", config_.gradient_clipping, "max_grad_norm",
                     args_->clipping.max_norm, release_->gradient_clipping);
    if (config_.optimizer) merge_optimizer(*config_.optimizer);
    check_clipping();
    if (config_.scheduler) merge_scheduler(*config_.scheduler);
    args_->reporting.monitor_tensorboard_dir = config_.tensorboard_dir;
    args_->reporting.monitor_csv_dir = config_.csv_dir;
    report_mismatches();
  }

 private:
  [[noreturn]] void fail_at(const std::string& key, const std::string& message) const {
    fail(ExitCode::kBadConfig, "{}: {}: {}", config_.origin, key, message);
  }

  void add_mismatch(const std::string& key, const std::string& value, const std::string& other) {
    mismatches_.push_back(fmt::format("{} {} and {}", key, value, other));
  }

  void note(const std::string& name, const std::string& key) {
    args_->sources.deepspeed_origins[name] = fmt::format("{}: {}", config_.origin, key);
  }

  // Sets an argument to the value of a key, checked against the range of its flag.
  template <typename T>
  void assign(const std::string& key, const std::string& name, const T& value) {
    const Flag* flag = table_.find(name);
    TESSERA_CHECK(flag != nullptr && flag->set, "flag '{}'", name);
    try {
      flag->set({fmt::format("{}", value)});
    } catch (const Error& error) {
      const std::string message = error.what();  // "--NAME: expected ..., found ..."
      const size_t colon = message.find(": ");
      fail_at(key, colon == std::string::npos ? message : message.substr(colon + 2));
    }
  }

  // Applies a key that decides an argument. A flag that disagrees is a mismatch.
  template <typename T>
  void merge_value(const std::string& key, const T& value, const std::string& name, const T& argument) {
    if (!table_.is_set(name)) {
      assign(key, name, value);
      note(name, key);
    } else if (argument != value) {
      add_mismatch(key, fmt::format("{}", value), fmt::format("{} {}", name, argument));
    }
  }

  template <typename T>
  void merge_or_default(const std::string& key, const DeepSpeedSetting<T>& setting, const std::string& name,
                        const T& argument, const T& otherwise) {
    if (setting.is_auto) return;
    if (setting.value) return merge_value(key, *setting.value, name, argument);
    if (table_.is_set(name) && argument != otherwise) {
      log_warning(
          "{}: {} {} has no effect: without {} DeepSpeed {} takes {}; write \"{}\": \"auto\" to take {}",
          config_.origin, name, argument, key, args_->sources.ds_compat, otherwise,
          key.substr(key.rfind('.') + 1), name);
    }
    assign(key, name, otherwise);
    note(name, fmt::format("no {}, DeepSpeed {}'s default", key, args_->sources.ds_compat));
  }

  // train_batch_size = micro batch * accumulation * world size; absent ones follow from the others.
  void merge_batch() {
    const int64_t num_ranks = num_row_ranks(*args_, world_size_);
    constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
    constexpr const char* kAccumulation = "gradient_accumulation_steps";
    constexpr const char* kAll = "train_batch_size";
    const auto known = [&](const DeepSpeedSetting<int64_t>& setting, const char* flag,
                           int64_t argument) -> std::optional<int64_t> {
      if (setting.value) return setting.value;
      if (table_.is_set(flag)) return argument;
      // An accumulation that is not given follows from the global batch.
      const bool follows = flag == std::string_view(kAccumulation) && args_->batch.global_rows;
      if (setting.is_auto && !follows) return argument;
      return std::nullopt;
    };
    std::optional<int64_t> micro = known(config_.train_micro_batch_size_per_gpu,
                                         "per_device_train_batch_size", args_->batch.rows_per_device);
    std::optional<int64_t> accumulation =
        known(config_.gradient_accumulation_steps, kAccumulation, args_->batch.accumulation_steps);
    const std::optional<int64_t> all = config_.train_batch_size.value;
    if (!micro) {
      if (config_.train_batch_size.is_absent()) {
        fail_at(kMicro,
                "neither it nor train_batch_size is set: DeepSpeed needs one of them; use \"auto\" or give "
                "per_device_train_batch_size");
      }
      if (!all) {
        micro = args_->batch.rows_per_device;
      } else {
        micro = std::max<int64_t>(1, *all / accumulation.value_or(1) / num_ranks);
      }
      if (!accumulation && !args_->batch.global_rows) accumulation = 1;
    }
    if (!accumulation && args_->batch.global_rows) {
      accumulation = accumulation_of_global_batch(*args_->batch.global_rows, *micro, num_ranks);
    }
    if (!accumulation) accumulation = all ? std::max<int64_t>(1, *all / *micro / num_ranks) : 1;

    if (config_.train_micro_batch_size_per_gpu.value) {
      merge_value(kMicro, *micro, "per_device_train_batch_size", args_->batch.rows_per_device);
    } else {
      if (*micro != args_->batch.rows_per_device) note("per_device_train_batch_size", kAll);
      assign(kMicro, "per_device_train_batch_size", *micro);
    }
    if (config_.gradient_accumulation_steps.value) {
      merge_value(kAccumulation, *accumulation, kAccumulation, args_->batch.accumulation_steps);
    } else {
      if (all && *accumulation != args_->batch.accumulation_steps) note(kAccumulation, kAll);
      assign(kAccumulation, kAccumulation, *accumulation);
    }
    int64_t product = 0;
    const bool too_large = __builtin_mul_overflow(*micro, *accumulation, &product) ||
                           __builtin_mul_overflow(product, num_ranks, &product);
    if (all && (too_large || *all != product)) {
      add_mismatch("train_batch_size", fmt::format("{}", *all),
                   fmt::format("micro batch {} x accumulation {} x world size {}{}", *micro, *accumulation,
                               num_ranks, num_ranks < world_size_ ? " / sequence_parallel_size" : ""));
    }
    if (all && args_->batch.global_rows && *args_->batch.global_rows != *all) {
      add_mismatch("train_batch_size", fmt::format("{}", *all),
                   fmt::format("global_batch_size {}", *args_->batch.global_rows));
    }
  }

  void merge_precision() {
    if (!config_.bf16.value) return;
    const bool wanted = *config_.bf16.value;
    const char* name = wanted ? "bfloat16" : "float32";
    if (table_.is_set("bf16") && args_->precision.bf16 && *args_->precision.bf16 != wanted)
      add_mismatch("bf16.enabled", fmt::format("{}", wanted), fmt::format("bf16 {}", *args_->precision.bf16));
    const bool is_bf16 = args_->precision.dtype == DType::kBF16;
    if (table_.is_set("dtype") && is_bf16 != wanted)
      add_mismatch("bf16.enabled", fmt::format("{}", wanted),
                   fmt::format("dtype {}", is_bf16 ? "bfloat16" : "float32"));
    if (table_.is_set("dtype")) return;
    assign("bf16.enabled", "dtype", std::string(name));
    note("dtype", "bf16.enabled");
  }

  // Sharding and exchange change where the work is done, not the result: what the file leaves out comes from
  // the flag, or is DeepSpeed's default.
  void merge_zero() {
    if (config_.zero_stage) {
      merge_value("zero_optimization.stage", *config_.zero_stage, "zero_stage",
                  args_->sharding.stage.value_or(*config_.zero_stage));
    } else if (!args_->sharding.stage) {
      args_->sharding.stage = 0;
      note("zero_stage", "no zero_optimization.stage");
    }
    if (config_.grad_accum_dtype) {
      if (!args_->sharding.grad_accum_dtype) {
        args_->sharding.grad_accum_dtype = config_.grad_accum_dtype;
        note("grad_accum_dtype", "data_types.grad_accum_dtype");
      }
      if (args_->sharding.grad_accum_dtype != config_.grad_accum_dtype) {
        const auto word = [](DType dtype) { return word_of(kAccumulationDTypeWords, std::optional(dtype)); };
        add_mismatch("data_types.grad_accum_dtype", std::string(word(*config_.grad_accum_dtype)),
                     fmt::format("grad_accum_dtype {}", word(*args_->sharding.grad_accum_dtype)));
      }
    }
    if (config_.zero_quantized_weights) {
      merge_value("zero_optimization.zero_quantized_weights", *config_.zero_quantized_weights,
                  "zero_quantized_weights", args_->sharding.quantized_weights);
    }
    if (config_.zero_quantized_gradients) {
      merge_value("zero_optimization.zero_quantized_gradients",
                  std::string(*config_.zero_quantized_gradients ? "int4" : "none"),
                  "zero_quantized_gradients",
                  std::string(word_of(kGradientCodeWords, args_->sharding.quantized_gradients)));
    }
    const auto size_of = [](const DeepSpeedSetting<int64_t>& setting, int64_t otherwise) {
      return setting.is_absent() ? std::optional(otherwise) : setting.value;
    };
    args_->sharding.prefetch_bucket_size = size_of(config_.stage3_prefetch_bucket_size, 50'000'000);
    args_->sharding.persistence_threshold = size_of(config_.stage3_param_persistence_threshold, 100'000);
    args_->sharding.max_live_parameters = config_.stage3_max_live_parameters.value_or(1'000'000'000);
    args_->sharding.overlap_comm = config_.overlap_comm.value_or(true);
    args_->sharding.communication_dtype = config_.communication_data_type;
    merge_offload();
    if (config_.gradients_are_summed && world_size_ > 1)
      fail_at("gradient_allreduce_op",
              fmt::format("sum makes gradients {} times as large, which is not supported; use mean",
                          world_size_));
  }

  // For the stages that shard gradients.
  void check_clipping() const {
    const int64_t stage = config_.zero_stage.value_or(0);
    if (stage == 0 || args_->clipping.max_norm == 0) return;
    if (!config_.compute_grad_norm && stage < 3) {
      fail_at("zero_optimization.compute_grad_norm",
              fmt::format("false needs gradient_clipping 0, as in DeepSpeed, found {}",
                          args_->clipping.max_norm));
    }
    if (config_.optimizer && config_.optimizer->type == DeepSpeedOptimizerType::kMuon) {
      fail_at(
          "gradient_clipping",
          fmt::format("{} with Muon and zero_optimization.stage {} is not supported: there DeepSpeed clips "
                      "what Muon has made of the gradients, here and in its stage 0 the gradients are "
                      "clipped; write 0, or stage 0",
                      args_->clipping.max_norm, stage));
    }
  }

  void merge_offload() {
    const bool has_optimizer =
        merge_device("optimizer", config_.offload_optimizer_device, args_->placement.optimizer_device);
    const bool has_param = merge_device("param", config_.offload_param_device, args_->placement.param_device);
    if (has_param) prepare_offload_param();
    const std::optional<std::string>&optimizer = config_.offload_optimizer_nvme_path,
          &param = config_.offload_param_nvme_path;
    if (optimizer && param && *optimizer != *param) {
      fail_at(
          "zero_optimization.offload_param.nvme_path",
          fmt::format("{} and that of offload_optimizer, {}, differ: one folder is for both; write the same",
                      printable(*param), printable(*optimizer)));
    }
    if (optimizer || param) {
      merge_value(fmt::format("zero_optimization.offload_{}.nvme_path", optimizer ? "optimizer" : "param"),
                  optimizer ? *optimizer : *param, "offload_dir", args_->placement.offload_dir);
    }
    if (!has_optimizer && !has_param) return;
    if (config_.aio_block_size) {
      merge_value("aio.block_size", *config_.aio_block_size, "aio_block_size",
                  args_->placement.transfers.block_bytes);
    }
    if (config_.aio_queue_depth) {
      merge_value("aio.queue_depth", *config_.aio_queue_depth, "aio_queue_depth",
                  args_->placement.transfers.queue_depth);
    }
  }

  // Merges the device of an offload section; none and cpu both mean memory. True: the file says a disk.
  bool merge_device(const std::string& what, const std::optional<std::string>& device,
                    OffloadDevice argument) {
    if (!device || (*device != "nvme" && argument != OffloadDevice::kNvme)) return false;
    merge_value(fmt::format("zero_optimization.offload_{}.device", what), *device,
                fmt::format("offload_{}_device", what), std::string(word_of(argument)));
    return *device == "nvme";
  }

  // Layers are streamed once per pass, so that each must be updated in the backward pass, unless they are not
  // trained.
  void prepare_offload_param() {
    constexpr const char* kKey = "zero_optimization.offload_param.device";
    if (world_size_ > 1) {
      fail_at(kKey,
              fmt::format("nvme needs one rank, found {}: write cpu or none; stage 3 divides weights among "
                          "the ranks, and offload_optimizer may be on nvme",
                          world_size_));
    }
    if (args_->lora.finetuning_type == FinetuningType::kLora) return;
    if (!table_.is_set("optimizer_in_backward")) {
      args_->placement.optimizer_in_backward = true;
      note("optimizer_in_backward", fmt::format("{} nvme", kKey));
    } else if (!args_->placement.optimizer_in_backward) {
      add_mismatch(kKey, "nvme", "optimizer_in_backward false");
    }
  }

  // Defaults are those of DeepSpeed's optimizer, or of torch.optim.AdamW if torch_adam is set. There is one
  // parameter group: norm weights decay as well.
  void merge_optimizer(const DeepSpeedOptimizer& optimizer) {
    const std::string prefix = "optimizer.params.";
    const bool torch_adamw = optimizer.torch_adam && optimizer.decoupled_weight_decay;
    const bool is_muon = optimizer.type == DeepSpeedOptimizerType::kMuon;
    merge_optimizer_type(optimizer);
    merge_or_default(prefix + "lr", optimizer.lr, "learning_rate", args_->schedule.learning_rate, 1e-3);
    merge_or_default(prefix + "eps", optimizer.eps, "adam_epsilon", args_->optimizer.epsilon,
                     is_muon ? 1e-10 : 1e-8);
    merge_or_default(prefix + "weight_decay", optimizer.weight_decay, "weight_decay",
                     args_->optimizer.weight_decay, torch_adamw ? 1e-2 : 0.0);
    const auto beta = [&](size_t index) -> DeepSpeedSetting<double> {
      if (!optimizer.betas.value) return {optimizer.betas.is_auto, std::nullopt};
      return {false, optimizer.betas.value->at(index)};
    };
    merge_or_default(prefix + "betas", beta(0), "adam_beta1", args_->optimizer.beta1, 0.9);
    merge_or_default(prefix + "betas", beta(1), "adam_beta2", args_->optimizer.beta2, is_muon ? 0.95 : 0.999);
    if (is_muon) merge_muon(prefix, optimizer);
    if (!optimizer.decoupled_weight_decay && args_->optimizer.weight_decay != 0) {
      fail_at(prefix + "adam_w_mode",
              fmt::format("false with weight_decay {} is Adam with L2 regularization, which is not "
                          "supported; use true or weight_decay 0",
                          args_->optimizer.weight_decay));
    }
    if (table_.is_set("weight_decay_norms") && !args_->optimizer.weight_decay_norms) {
      add_mismatch("optimizer", "decays norm weights", "weight_decay_norms false");
    }
    args_->optimizer.weight_decay_norms = true;
    note("weight_decay_norms", "optimizer");
  }

  // A flag may name any form of the file's optimizer.
  void merge_optimizer_type(const DeepSpeedOptimizer& optimizer) {
    const OptimizerForm form = optimizer.type == DeepSpeedOptimizerType::kMuon   ? OptimizerForm::kMuon
                               : optimizer.type == DeepSpeedOptimizerType::kLion ? OptimizerForm::kLion
                                                                                 : OptimizerForm::kAdamW;
    if (table_.is_set("optim")) {
      if (optimizer_kind(args_->optimizer.form) != optimizer_kind(form))
        add_mismatch("optimizer.type", optimizer.type_name, fmt::format("optim {}", args_->optimizer.form));
    } else if (args_->optimizer.form != form) {
      args_->optimizer.form = form;
      note("optim", "optimizer.type");
    }
  }

  // DeepSpeed's Muon multiplies the rate by sqrt(max(1, rows / columns)).
  void merge_muon(const std::string& prefix, const DeepSpeedOptimizer& optimizer) {
    merge_or_default(prefix + "momentum", optimizer.momentum, "muon_momentum", args_->optimizer.muon_momentum,
                     0.95);
    merge_value("optimizer.type", std::string("original"), "muon_adjust_lr_fn",
                std::string(word_of(args_->optimizer.muon_rate)));
  }

  void merge_scheduler(const DeepSpeedScheduler& scheduler) {
    const std::string prefix = "scheduler.params.";
    for (const char* flag : {"lr_scheduler_type", "lr_scheduler_kwargs"}) {
      if (table_.is_set(flag))
        log_warning("{}: {} has no effect: the file has a scheduler", config_.origin, flag);
    }
    Json params = scheduler.params;
    const auto number = [&](const char* name) -> std::optional<double> {
      const auto found = params.find(name);
      return found == params.end() || !found->is_number() ? std::nullopt
                                                          : std::optional<double>(found->get<double>());
    };
    if (scheduler.type == "WarmupLR" && !release_->warmup_follows_optimizer &&
        !params.contains("warmup_max_lr"))
      params["warmup_max_lr"] = 1e-3;
    for (const char* name : {"cycle_first_stair_count", "cycle_second_stair_count"}) {
      if (release_->has_stairs || params.value(name, 0) == 0) continue;
      log_warning("{}: {}{} has no effect: DeepSpeed {} does not read it", config_.origin, prefix, name,
                  args_->sources.ds_compat);
      params.erase(name);
    }
    if (const auto maximum = number("warmup_max_lr")) merge_highest_rate(prefix, scheduler.params, *maximum);
    if (const auto total = number("total_num_steps")) {
      const double run_steps = static_cast<double>(args_->batch.max_steps);
      if (table_.is_set("max_steps") && args_->batch.max_steps > 0 && *total != run_steps)
        add_mismatch(prefix + "total_num_steps", fmt::format("{}", *total),
                     fmt::format("max_steps {}", args_->batch.max_steps));
    }
    if (scheduler.type.starts_with("Warmup")) merge_warmup(prefix, params);
    args_->schedule.type = scheduler.type;
    args_->schedule.kwargs = params.dump();
    note("lr_scheduler_type", "scheduler.type");
    note("lr_scheduler_kwargs", "scheduler.params");
    check_schedule();
  }

  // Without an optimizer in the file, the scheduler alone sets the learning rate. Two rates in the file may
  // differ, but a flag must agree with both.
  void merge_highest_rate(const std::string& prefix, const Json& in_file, double maximum) {
    const bool optimizer_decides = config_.optimizer && !config_.optimizer->lr.is_auto;
    const bool flag_has_both =
        optimizer_decides && config_.optimizer->lr.value && in_file.contains("warmup_max_lr");
    if (!optimizer_decides || (flag_has_both && table_.is_set("learning_rate")))
      merge_value(prefix + "warmup_max_lr", maximum, "learning_rate", args_->schedule.learning_rate);
  }

  void merge_warmup(const std::string& prefix, const Json& params) {
    constexpr int64_t kDefault = 1000;
    const auto found = params.find("warmup_num_steps");
    if (found != params.end() && *found == "auto") {
      if (args_->schedule.warmup_steps == 0 && args_->schedule.warmup_ratio.value_or(0) == 0)
        log_warning("{}: {}warmup_num_steps: auto without warmup_steps is 0, read as 2", config_.origin,
                    prefix);
      return;
    }
    const int64_t steps = found == params.end() ? kDefault : found->get<int64_t>();
    const bool flag_given = table_.is_set("warmup_steps") || table_.is_set("warmup_ratio");
    const bool flag_is_known = args_->schedule.warmup_steps >= 1 || args_->batch.max_steps > 0;
    const bool agrees = flag_is_known && args_->schedule.num_warmup_steps(
                                             std::max<int64_t>(args_->batch.max_steps, 1)) == steps;
    if (flag_given && !agrees) {
      const std::string flag = table_.is_set("warmup_steps")
                                   ? fmt::format("warmup_steps {}", args_->schedule.warmup_steps)
                                   : fmt::format("warmup_ratio {}", args_->schedule.warmup_ratio.value_or(0));
      if (found == params.end()) {
        log_warning("{}: {} has no effect: without {}warmup_num_steps DeepSpeed takes {}", config_.origin,
                    flag, prefix, kDefault);
      } else if (flag_is_known) {
        add_mismatch(prefix + "warmup_num_steps", fmt::format("{}", steps), flag);
      } else {
        log_warning("{}: {} has no effect: the file has {}warmup_num_steps {}", config_.origin, flag, prefix,
                    steps);
      }
    }
    args_->schedule.warmup_steps = static_cast<double>(steps);
    args_->schedule.warmup_ratio.reset();
    note("warmup_steps", prefix + "warmup_num_steps");
  }

  void check_schedule() const {
    try {
      make_schedule(args_->schedule, 1000);
    } catch (const Error& error) {
      const std::string message = error.what();  // "lr_scheduler_kwargs: ..."
      const size_t colon = message.find(": ");
      fail_at("scheduler.params", colon == std::string::npos ? message : message.substr(colon + 2));
    }
  }

  void report_mismatches() const {
    if (mismatches_.empty()) return;
    fail(ExitCode::kBadConfig,
         "{}: these values differ from the arguments of the run: {}; correct the file or the flags, or write "
         "\"auto\" in the file",
         config_.origin, fmt::join(mismatches_, "; "));
  }

  const DeepSpeedConfig& config_;
  const FlagTable& table_;
  int64_t world_size_;
  RunSpec* args_;
  const Release* release_;
  std::vector<std::string> mismatches_;
};

}  // namespace

std::vector<std::string> deepspeed_releases() {
  std::vector<std::string> names;
  for (const Release& release : kReleases) names.emplace_back(release.name);
  return names;
}

void apply_deepspeed(const DeepSpeedConfig& config, const FlagTable& table, int64_t world_size,
                     RunSpec* args) {
  DeepSpeedMerge(config, table, world_size, args).run();
  log_deepspeed_notes(config, world_size);
}

}  // namespace tessera
