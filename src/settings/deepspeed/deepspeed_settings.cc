#include "settings/deepspeed/deepspeed_settings.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "settings/compat/compat_table.h"
#include "settings/derived.h"
#include "settings/resolve.h"

namespace tessera {
namespace {

// Differences between releases: gradient_clipping if the file has none, the highest rate of WarmupLR
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

// The text of a value as a flag takes it.
std::string flag_text(const Json& value) {
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// "--NAME: expected ..." and "lr_scheduler_kwargs: ..." without the name.
std::string without_name(const std::string& message) {
  const size_t colon = message.find(": ");
  return colon == std::string::npos ? message : message.substr(colon + 2);
}

class DeepSpeedMerge {
 public:
  DeepSpeedMerge(const DeepSpeedFile& file, const FlagTable& table, int64_t world_size, RunSettings* spec)
      : file_(file),
        table_(table),
        world_size_(world_size),
        spec_(spec),
        release_(std::ranges::find(kReleases, spec->sources.ds_compat, &Release::name)) {
    declare_training_flags(&fields_, spec);
  }

  void run() {
    merge("sequence_parallel_size");
    check_context_ranks(spec_->sharding.context_parallel_size, world_size_);
    merge_batch();
    merge_precision();
    merge_zero();
    merge_or_default("gradient_clipping", release_->gradient_clipping);
    if (file_.find("optimizer") != nullptr) merge_optimizer();
    check_clipping();
    if (file_.find("scheduler") != nullptr) merge_scheduler();
    spec_->reporting.monitor_tensorboard_dir = file_.monitor_folder("tensorboard");
    spec_->reporting.monitor_csv_dir = file_.monitor_folder("csv_monitor");
    report_mismatches();
  }

 private:
  [[noreturn]] void fail_at(const std::string& key, const std::string& message) const {
    fail(ExitCode::kBadConfig, "{}: {}: {}", file_.origin, key, message);
  }

  void add_mismatch(const std::string& key, const std::string& value, const std::string& other) {
    mismatches_.push_back(fmt::format("{} {} and {}", key, value, other));
  }

  void note(const std::string& name, const std::string& key) {
    spec_->sources.given[name] = {SettingOrigin::kDeepSpeed, fmt::format("{}: {}", file_.origin, key)};
  }

  const Flag& flag(const std::string& name) const {
    const Flag* found = fields_.find(name);
    TESSERA_CHECK(found != nullptr && found->set && found->get, "flag '{}'", name);
    return *found;
  }

  static std::string value_of(const Flag& flag) { return fmt::format("{}", fmt::join(flag.get(), " ")); }

  // Sets a flag to the value of a key, checked against its range.
  void assign(const std::string& key, const std::string& name, const std::string& value) const {
    try {
      flag(name).set({value});
    } catch (const Error& error) {
      fail_at(key, without_name(error.what()));
    }
  }

  // Applies a key that decides a flag. A flag that was given and disagrees is a mismatch.
  void merge_value(const std::string& key, const std::string& name, const std::string& value) {
    const std::string given = value_of(flag(name));
    assign(key, name, value);
    if (!table_.is_set(name) || given.empty() || given == "auto") return note(name, key);
    if (value_of(flag(name)) == given) return;
    flag(name).set({given});
    add_mismatch(key, value, fmt::format("{} {}", name, given));
  }

  // The flag and value that the table gives for a key: "NAME" or "NAME THEIRS=OURS ...".
  std::pair<std::string, std::string> flag_and_value(const std::string& key,
                                                     const std::string& theirs) const {
    const CompatName* known = compat_table("deepspeed").find(key);
    TESSERA_CHECK(known != nullptr && known->use == CompatUse::kSets, "key '{}'", key);
    std::istringstream words{std::string(known->detail)};
    std::string name, expected;
    words >> name;
    for (std::string word; words >> word;) {
      const std::string from = word.substr(0, word.find('='));
      if (from == theirs) return {name, word.substr(from.size() + 1)};
      expected += fmt::format("{}{}", expected.empty() ? "" : ", ", from);
    }
    if (!expected.empty())
      fail_at(key, fmt::format("expected one of {}, found '{}'", expected, printable(theirs)));
    return {name, theirs};
  }

  // Applies a key as the table says, if the file has it with a value.
  void merge(const std::string& key) {
    const Json* value = file_.find(key);
    if (value == nullptr || *value == "auto") return;
    const auto [name, ours] = flag_and_value(key, flag_text(*value));
    merge_value(key, name, ours);
  }

  // Merges a key that is `otherwise` if the file does not have it.
  void merge_or_default(const std::string& key, double otherwise) {
    const Json* value = file_.find(key);
    merge_or_default(key, flag_and_value(key, "").first, value == nullptr ? Json() : *value, otherwise);
  }
  void merge_or_default(const std::string& key, const std::string& name, const Json& value,
                        double otherwise) {
    if (value == "auto") return;
    if (!value.is_null()) return merge_value(key, name, flag_text(value));
    const std::string given = value_of(flag(name));
    assign(key, name, fmt::format("{}", otherwise));
    if (table_.is_set(name) && value_of(flag(name)) != given) {
      log_warning(
          "{}: {} {} has no effect: without {} DeepSpeed {} takes {}; write \"{}\": \"auto\" to take {}",
          file_.origin, name, given, key, spec_->sources.ds_compat, otherwise, key.substr(key.rfind('.') + 1),
          name);
    }
    note(name, fmt::format("no {}, DeepSpeed {}'s default", key, spec_->sources.ds_compat));
  }

  // train_batch_size = micro batch * accumulation * world size; absent ones follow from the others.
  void merge_batch() {
    const int64_t num_ranks = num_row_ranks(spec_->sharding, world_size_);
    constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
    constexpr const char* kMicroFlag = "per_device_train_batch_size";
    constexpr const char* kAccumulation = "gradient_accumulation_steps";
    constexpr const char* kAll = "train_batch_size";
    const auto known = [&](const char* key, const char* name, int64_t argument) -> std::optional<int64_t> {
      if (const auto value = file_.value<int64_t>(key)) return value;
      if (table_.is_set(name)) return argument;
      // An accumulation that is not given follows from the global batch.
      const bool follows = key == std::string_view(kAccumulation) && spec_->batch.global_rows;
      if (file_.is_auto(key) && !follows) return argument;
      return std::nullopt;
    };
    std::optional<int64_t> micro = known(kMicro, kMicroFlag, spec_->batch.rows_per_device);
    std::optional<int64_t> accumulation =
        known(kAccumulation, kAccumulation, spec_->batch.accumulation_steps);
    const std::optional<int64_t> all = file_.value<int64_t>(kAll);
    if (!micro) {
      if (file_.find(kAll) == nullptr) {
        fail_at(kMicro,
                "neither it nor train_batch_size is set: DeepSpeed needs one of them; use \"auto\" or give "
                "per_device_train_batch_size");
      }
      micro = all ? std::max<int64_t>(1, *all / accumulation.value_or(1) / num_ranks)
                  : spec_->batch.rows_per_device;
      if (!accumulation && !spec_->batch.global_rows) accumulation = 1;
    }
    if (!accumulation && spec_->batch.global_rows)
      accumulation = accumulation_of_global_batch(*spec_->batch.global_rows, *micro, num_ranks);
    if (!accumulation) accumulation = all ? std::max<int64_t>(1, *all / *micro / num_ranks) : 1;

    if (file_.value<int64_t>(kMicro)) {
      merge(kMicro);
    } else {
      if (*micro != spec_->batch.rows_per_device) note(kMicroFlag, kAll);
      assign(kMicro, kMicroFlag, std::to_string(*micro));
    }
    if (file_.value<int64_t>(kAccumulation)) {
      merge(kAccumulation);
    } else {
      if (all && *accumulation != spec_->batch.accumulation_steps) note(kAccumulation, kAll);
      assign(kAccumulation, kAccumulation, std::to_string(*accumulation));
    }
    if (!all) return;
    int64_t product = 0;
    const bool too_large = __builtin_mul_overflow(*micro, *accumulation, &product) ||
                           __builtin_mul_overflow(product, num_ranks, &product);
    if (too_large || *all != product) {
      add_mismatch(kAll, std::to_string(*all),
                   fmt::format("micro batch {} x accumulation {} x world size {}{}", *micro, *accumulation,
                               num_ranks, num_ranks < world_size_ ? " / sequence_parallel_size" : ""));
    }
    if (spec_->batch.global_rows && *spec_->batch.global_rows != *all)
      add_mismatch(kAll, std::to_string(*all),
                   fmt::format("global_batch_size {}", *spec_->batch.global_rows));
  }

  void merge_precision() {
    const std::optional<bool> wanted = file_.value<bool>("bf16.enabled");
    if (!wanted) return;
    if (table_.is_set("bf16") && spec_->precision.bf16 && *spec_->precision.bf16 != *wanted)
      add_mismatch("bf16.enabled", fmt::format("{}", *wanted),
                   fmt::format("bf16 {}", *spec_->precision.bf16));
    merge("bf16.enabled");
  }

  // Sharding and collectives change where the work is done, not the result: what the file leaves out comes
  // from the flag, or is DeepSpeed's default.
  void merge_zero() {
    merge("zero_optimization.stage");
    if (!spec_->sharding.stage) {
      spec_->sharding.stage = 0;
      note("zero_stage", "no zero_optimization.stage");
    }
    merge("data_types.grad_accum_dtype");
    merge("zero_optimization.zero_quantized_weights");
    merge("zero_optimization.zero_quantized_gradients");
    const auto size_of = [this](const std::string& name, int64_t otherwise) {
      const std::string key = "zero_optimization." + name;
      return file_.find(key) == nullptr ? std::optional(otherwise) : file_.value<int64_t>(key);
    };
    spec_->sharding.prefetch_bucket_size = size_of("stage3_prefetch_bucket_size", 50'000'000);
    spec_->sharding.persistence_threshold = size_of("stage3_param_persistence_threshold", 100'000);
    spec_->sharding.max_live_parameters = *size_of("stage3_max_live_parameters", 1'000'000'000);
    spec_->sharding.overlap_comm = file_.value<bool>("zero_optimization.overlap_comm").value_or(true);
    spec_->sharding.communication_dtype = collective_dtype();
    merge_offload();
    if (file_.value<std::string>("gradient_allreduce_op") == "sum" && world_size_ > 1)
      fail_at("gradient_allreduce_op",
              fmt::format("sum makes gradients {} times as large, which is not supported; use mean",
                          world_size_));
  }

  std::optional<DType> collective_dtype() const {
    constexpr const char* kKey = "communication_data_type";
    const std::string name = file_.value<std::string>(kKey).value_or("");
    if (name.empty()) return std::nullopt;
    return flag_and_value(kKey, name).second == "float32" ? DType::kF32 : DType::kBF16;
  }

  // For the stages that shard gradients.
  void check_clipping() const {
    const int64_t stage = file_.value<int64_t>("zero_optimization.stage").value_or(0);
    if (stage == 0 || spec_->clipping.max_norm == 0) return;
    if (file_.value<bool>("zero_optimization.compute_grad_norm") == false && stage < 3) {
      fail_at("zero_optimization.compute_grad_norm",
              fmt::format("false needs gradient_clipping 0, as in DeepSpeed, found {}",
                          spec_->clipping.max_norm));
    }
    if (file_.value<std::string>("optimizer.type") == "Muon") {
      fail_at(
          "gradient_clipping",
          fmt::format("{} with Muon and zero_optimization.stage {} is not supported: there DeepSpeed clips "
                      "what Muon has made of the gradients, here and in its stage 0 the gradients are "
                      "clipped; write 0, or stage 0",
                      spec_->clipping.max_norm, stage));
    }
  }

  void merge_offload() {
    const bool has_optimizer = merge_device("offload_optimizer", spec_->placement.optimizer_device);
    const bool has_param = merge_device("offload_param", spec_->placement.param_device);
    if (has_param) prepare_offload_param();
    if (!has_optimizer && !has_param) return;
    const std::string optimizer = "zero_optimization.offload_optimizer.nvme_path",
                      param = "zero_optimization.offload_param.nvme_path";
    if (const Json* of_optimizer = file_.find(optimizer), *of_param = file_.find(param);
        of_optimizer != nullptr && of_param != nullptr && *of_optimizer != *of_param) {
      fail_at(param,
              fmt::format("{} and that of offload_optimizer, {}, differ: one folder is for both; write "
                          "the same",
                          printable(flag_text(*of_param)), printable(flag_text(*of_optimizer))));
    }
    merge(file_.find(optimizer) != nullptr ? optimizer : param);
    merge("aio.block_size");
    merge("aio.queue_depth");
  }

  // Merges the device of an offload section; none and cpu both mean memory. True: the file says a disk.
  bool merge_device(const std::string& section, OffloadDevice argument) {
    const bool is_disk = file_.keeps_on_disk(section);
    if (is_disk || argument == OffloadDevice::kNvme)
      merge(fmt::format("zero_optimization.{}.device", section));
    return is_disk;
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
    if (spec_->lora.finetuning_type == FinetuningType::kLora) return;
    if (!table_.is_set("optimizer_in_backward")) {
      spec_->placement.optimizer_in_backward = true;
      note("optimizer_in_backward", fmt::format("{} nvme", kKey));
    } else if (!spec_->placement.optimizer_in_backward) {
      add_mismatch(kKey, "nvme", "optimizer_in_backward false");
    }
  }

  // Defaults are those of DeepSpeed's optimizer, or of torch.optim.AdamW if torch_adam is set. There is one
  // parameter group: norm weights decay as well.
  void merge_optimizer() {
    const std::string prefix = "optimizer.params.";
    const std::string type = *file_.value<std::string>("optimizer.type");
    const bool is_muon = type == "Muon";
    const bool decouples = type == "AdamW" || file_.value<bool>(prefix + "adam_w_mode").value_or(true);
    const bool is_torchs_adamw = file_.value<bool>(prefix + "torch_adam").value_or(false) && decouples;
    merge_optimizer_type(type);
    merge_or_default(prefix + "lr", 1e-3);
    merge_or_default(prefix + "eps", is_muon ? 1e-10 : 1e-8);
    merge_or_default(prefix + "weight_decay", is_torchs_adamw ? 1e-2 : 0.0);
    const Json* betas = file_.find(prefix + "betas");
    const auto beta = [&](size_t index) {
      return betas == nullptr ? Json() : betas->is_array() ? (*betas)[index] : *betas;
    };
    merge_or_default(prefix + "betas", "adam_beta1", beta(0), 0.9);
    merge_or_default(prefix + "betas", "adam_beta2", beta(1), is_muon ? 0.95 : 0.999);
    if (is_muon) {  // DeepSpeed's multiplies the rate by sqrt(max(1, rows / columns))
      merge_or_default(prefix + "momentum", 0.95);
      merge_value("optimizer.type", "muon_adjust_lr_fn", "original");
    }
    if (!decouples && spec_->optimizer.weight_decay != 0) {
      fail_at(prefix + "adam_w_mode",
              fmt::format("false with weight_decay {} is Adam with L2 regularization, which is not "
                          "supported; use true or weight_decay 0",
                          spec_->optimizer.weight_decay));
    }
    if (table_.is_set("weight_decay_norms") && !spec_->optimizer.weight_decay_norms)
      add_mismatch("optimizer", "decays norm weights", "weight_decay_norms false");
    spec_->optimizer.weight_decay_norms = true;
    note("weight_decay_norms", "optimizer");
  }

  // A flag may name any form of the file's optimizer.
  void merge_optimizer_type(const std::string& type) {
    const OptimizerForm given = spec_->optimizer.form;
    assign("optimizer.type", "optim", flag_and_value("optimizer.type", type).second);
    if (spec_->optimizer.form == given) return;
    if (!table_.is_set("optim")) return note("optim", "optimizer.type");
    const bool is_same = optimizer_kind(given) == optimizer_kind(spec_->optimizer.form);
    spec_->optimizer.form = given;
    if (!is_same) add_mismatch("optimizer.type", type, fmt::format("optim {}", given));
  }

  void merge_scheduler() {
    const std::string prefix = "scheduler.params.";
    const std::string type = *file_.value<std::string>("scheduler.type");
    for (const char* name : {"lr_scheduler_type", "lr_scheduler_kwargs"}) {
      if (table_.is_set(name))
        log_warning("{}: {} has no effect: the file has a scheduler", file_.origin, name);
    }
    Json params = *file_.find("scheduler.params");
    if (type == "WarmupLR" && !release_->warmup_follows_optimizer && !params.contains("warmup_max_lr"))
      params["warmup_max_lr"] = 1e-3;
    for (const char* name : {"cycle_first_stair_count", "cycle_second_stair_count"}) {
      if (release_->has_stairs || params.value(name, 0) == 0) continue;
      log_warning("{}: {}{} has no effect: DeepSpeed {} does not read it", file_.origin, prefix, name,
                  spec_->sources.ds_compat);
      params.erase(name);
    }
    if (params.contains("warmup_max_lr") && params["warmup_max_lr"] != "auto")
      merge_highest_rate(prefix, params["warmup_max_lr"]);
    if (const auto total = file_.value<double>(prefix + "total_num_steps")) {
      const double run_steps = static_cast<double>(spec_->batch.max_steps);
      if (table_.is_set("max_steps") && spec_->batch.max_steps > 0 && *total != run_steps)
        add_mismatch(prefix + "total_num_steps", fmt::format("{}", *total),
                     fmt::format("max_steps {}", spec_->batch.max_steps));
    }
    if (type.starts_with("Warmup")) merge_warmup(prefix);
    spec_->schedule.form = schedule_of(schedule_named(type).value());
    spec_->sources.json_texts["lr_scheduler_kwargs"] = params.dump();
    note("lr_scheduler_type", "scheduler.type");
    note("lr_scheduler_kwargs", "scheduler.params");
    check_schedule();
  }

  // Without an optimizer in the file, the scheduler alone sets the learning rate. Two rates in the file may
  // differ, but a flag must agree with both.
  void merge_highest_rate(const std::string& prefix, const Json& maximum) {
    const bool optimizer_decides =
        file_.find("optimizer") != nullptr && !file_.is_auto("optimizer.params.lr");
    const bool flag_has_both = optimizer_decides && file_.find("optimizer.params.lr") != nullptr &&
                               file_.find(prefix + "warmup_max_lr") != nullptr;
    if (!optimizer_decides || (flag_has_both && table_.is_set("learning_rate")))
      merge_value(prefix + "warmup_max_lr", "learning_rate", flag_text(maximum));
  }

  void merge_warmup(const std::string& prefix) {
    const std::string key = prefix + "warmup_num_steps";
    if (file_.is_auto(key)) {
      if (spec_->schedule.warmup_steps == 0 && spec_->schedule.warmup_ratio.value_or(0) == 0)
        log_warning("{}: {}: auto without warmup_steps is 0, read as 2", file_.origin, key);
      return;
    }
    const bool is_absent = file_.find(key) == nullptr;
    const int64_t steps = file_.value<int64_t>(key).value_or(1000);
    const bool flag_given = table_.is_set("warmup_steps") || table_.is_set("warmup_ratio");
    const bool flag_is_known = spec_->schedule.warmup_steps >= 1 || spec_->batch.max_steps > 0;
    const bool agrees = flag_is_known && spec_->schedule.num_warmup_steps(
                                             std::max<int64_t>(spec_->batch.max_steps, 1)) == steps;
    if (flag_given && !agrees) {
      const std::string given =
          table_.is_set("warmup_steps")
              ? fmt::format("warmup_steps {}", spec_->schedule.warmup_steps)
              : fmt::format("warmup_ratio {}", spec_->schedule.warmup_ratio.value_or(0));
      if (is_absent) {
        log_warning("{}: {} has no effect: without {} DeepSpeed takes {}", file_.origin, given, key, steps);
      } else if (flag_is_known) {
        add_mismatch(key, fmt::format("{}", steps), given);
      } else {
        log_warning("{}: {} has no effect: the file has {} {}", file_.origin, given, key, steps);
      }
    }
    spec_->schedule.warmup_steps = static_cast<double>(steps);
    spec_->schedule.warmup_ratio.reset();
    note("warmup_steps", key);
  }

  void check_schedule() const {
    try {
      resolve_schedule(spec_);
    } catch (const Error& error) {
      fail_at("scheduler.params", without_name(error.what()));
    }
  }

  void report_mismatches() const {
    if (mismatches_.empty()) return;
    fail(ExitCode::kBadConfig,
         "{}: these values differ from the arguments of the run: {}; correct the file or the flags, or write "
         "\"auto\" in the file",
         file_.origin, fmt::join(mismatches_, "; "));
  }

  const DeepSpeedFile& file_;
  const FlagTable& table_;  // knows what was given
  FlagTable fields_;        // sets what is read
  int64_t world_size_;
  RunSettings* spec_;
  const Release* release_;
  std::vector<std::string> mismatches_;
};

}  // namespace

std::vector<std::string> deepspeed_releases() {
  std::vector<std::string> names;
  for (const Release& release : kReleases) names.emplace_back(release.name);
  return names;
}

void apply_deepspeed(const DeepSpeedFile& file, const FlagTable& table, int64_t world_size,
                     RunSettings* spec) {
  DeepSpeedMerge(file, table, world_size, spec).run();
  log_deepspeed_notes(file, world_size);
}

}  // namespace tessera
