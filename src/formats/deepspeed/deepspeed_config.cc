#include "formats/deepspeed/deepspeed_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/json_value.h"
#include "base/text.h"
#include "formats/hjson.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr int64_t kMaxFileBytes = 16 << 20;

constexpr const char* kScheduleNames[] = {"LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR",
                                          "WarmupCosineLR"};

template <typename T>
DeepSpeedSetting<T> setting(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return {};
  if (*found == "auto") return {true, std::nullopt};
  return {false, found->get<T>()};
}

// True if `value` or anything inside it has "enabled": true.
bool has_enabled(const Json& value) {
  if (value.is_object() && value.contains("enabled") && value["enabled"] == true) return true;
  return value.is_structured() && std::any_of(value.begin(), value.end(), has_enabled);
}

// compression_training is a tree of techniques; weight_quantization has no "enabled".
bool is_on(std::string_view section, const Json& value) {
  if (section == "compression_training") return has_enabled(value);
  if (section == "weight_quantization") return !value.empty();
  return value.value("enabled", Json()) == true;
}

class ConfigReader {
 public:
  ConfigReader(Json raw, const std::string& origin) : raw_(std::move(raw)) { config_.origin = origin; }

  DeepSpeedConfig read() {
    rewrite_deprecated();
    keys_ = check_deepspeed_keys(raw_, kDeepSpeedTopLevel, config_.origin, &config_.notes);
    read_batch();
    read_precision();
    read_zero();
    read_optimizer();
    read_scheduler();
    read_monitors();
    refuse_what_changes_results();
    return std::move(config_);
  }

 private:
  [[noreturn]] void fail_at(const std::string& key, const std::string& message) const {
    fail(ExitCode::kBadConfig, "{}: {}: {}", config_.origin, key, message);
  }
  void warn(const std::string& key, const std::string& text) { config_.notes.push_back({key, text, true}); }

  // Moves zero_optimization.<old> to <name>, which must not be present as well.
  void rename_in_zero(Json* zero, const char* old, const char* name, const Json& value) {
    if (zero->contains(name))
      fail_at(fmt::format("zero_optimization.{}", old),
              fmt::format("is the old name of {}: give only one", name));
    warn(fmt::format("zero_optimization.{}", old),
         fmt::format("deprecated, read as {} {}", name, printable(value.dump())));
    (*zero)[name] = value;
  }

  void rewrite_deprecated() {
    if (raw_.contains("bfloat16")) {
      // DeepSpeed uses the old name if the new one is absent.
      if (raw_.contains("bf16")) {
        warn("bfloat16", "ignored as DeepSpeed does: the file has bf16");
      } else {
        raw_["bf16"] = raw_["bfloat16"];
      }
      raw_.erase("bfloat16");
    }
    const auto zero = raw_.find("zero_optimization");
    if (zero == raw_.end()) return;
    if (zero->is_boolean()) {
      const int stage = zero->get<bool>() ? 1 : 0;
      warn("zero_optimization", fmt::format("deprecated, read as stage {}", stage));
      *zero = {{"stage", stage}};
    }
    if (!zero->is_object()) return;
    rewrite_deprecated_zero(&*zero);
  }

  void rewrite_deprecated_zero(Json* zero) {
    const auto take = [zero](const char* name) {
      Json value = zero->value(name, Json());
      zero->erase(name);
      return value;
    };
    constexpr std::array<std::array<const char*, 2>, 2> kOffloads = {
        {{"cpu_offload", "offload_optimizer"}, {"cpu_offload_param", "offload_param"}}};
    for (const auto& [old, name] : kOffloads) {
      if (!zero->contains(old)) continue;
      const Json value = take(old);
      if (value.is_null() || value == "auto") continue;
      if (!value.is_boolean())
        fail_at(fmt::format("zero_optimization.{}", old),
                fmt::format("expected true or false, found {}", found_text(value)));
      if (value == true) rename_in_zero(zero, old, name, {{"device", "cpu"}});
    }
    if (zero->contains("cpu_offload_use_pin_memory")) {
      take("cpu_offload_use_pin_memory");
      warn("zero_optimization.cpu_offload_use_pin_memory", "deprecated, ignored as DeepSpeed does");
    }
    constexpr const char* kOldGather = "stage3_gather_fp16_weights_on_model_save";
    if (zero->contains(kOldGather)) {
      const Json value = take(kOldGather);
      if (zero->contains("stage3_gather_16bit_weights_on_model_save"))
        fail_at(fmt::format("zero_optimization.{}", kOldGather),
                "is the old name of stage3_gather_16bit_weights_on_model_save: give only one");
      rename_in_zero(zero, kOldGather, "gather_16bit_weights_on_model_save", value);
    }
  }

  void read_batch() {
    const auto positive = [&](const char* name) {
      const auto found = setting<int64_t>(keys_, name);
      if (found.value && *found.value < 1)
        fail_at(name, fmt::format("expected a whole number of at least 1, found {}", *found.value));
      return found;
    };
    config_.train_batch_size = positive("train_batch_size");
    config_.sequence_parallel_size = positive("sequence_parallel_size").value;
    config_.train_micro_batch_size_per_gpu = positive("train_micro_batch_size_per_gpu");
    config_.gradient_accumulation_steps = positive("gradient_accumulation_steps");
    config_.gradient_clipping = setting<double>(keys_, "gradient_clipping");
  }

  void read_precision() {
    if (keys_.contains("bf16")) {
      config_.bf16 = setting<bool>(keys_["bf16"], "enabled");
      if (config_.bf16.is_absent()) config_.bf16.value = false;
    }
    const Json types = keys_.value("data_types", Json::object());
    if (raw_.contains("data_types")) {
      const Json kept = raw_["data_types"].value("keep_in_fp32_modules", Json("auto"));
      const bool is_list =
          kept.is_array() && std::ranges::all_of(kept, [](const Json& each) { return each.is_string(); });
      if (kept != "auto" && !kept.is_null() && !is_list)
        fail_at("data_types.keep_in_fp32_modules",
                fmt::format("expected \"auto\" or a list of names, found {}", found_text(kept)));
    }
    config_.grad_accum_dtype = read_dtype("data_types.grad_accum_dtype", types.value("grad_accum_dtype", ""));
    const std::string exchanged = keys_.value("communication_data_type", "");
    if (lower_case(exchanged) == "fp16") {
      warn("communication_data_type",
           "fp16 is not used: gradients are exchanged in the type of the weights, which cannot overflow");
    } else {
      config_.communication_data_type = read_dtype("communication_data_type", exchanged);
    }
  }

  std::optional<DType> read_dtype(const std::string& key, const std::string& name) const {
    if (name.empty()) return std::nullopt;
    if (name == "fp32" || name == "float32") return DType::kF32;
    if (name == "bf16" || name == "bfp16" || name == "bfloat16") return DType::kBF16;
    fail_at(key, fmt::format("expected fp32 or bf16, found '{}'", printable(name)));
  }

  void read_zero() {
    const Json zero = keys_.value("zero_optimization", Json::object());
    config_.zero_stage = setting<int64_t>(zero, "stage").value;
    const int64_t stage = config_.zero_stage.value_or(0);
    if (stage < 0 || stage > 3)
      fail_at("zero_optimization.stage", fmt::format("expected 0, 1, 2 or 3, found {}", stage));
    config_.stage3_max_live_parameters = setting<int64_t>(zero, "stage3_max_live_parameters").value;
    config_.stage3_prefetch_bucket_size = setting<int64_t>(zero, "stage3_prefetch_bucket_size");
    config_.stage3_param_persistence_threshold = setting<int64_t>(zero, "stage3_param_persistence_threshold");
    config_.overlap_comm = setting<bool>(zero, "overlap_comm").value;
    config_.compute_grad_norm = zero.value("compute_grad_norm", true);
    config_.zero_quantized_weights = setting<bool>(zero, "zero_quantized_weights").value;
    config_.zero_quantized_gradients = setting<bool>(zero, "zero_quantized_gradients").value;
    check_offload("offload_param");
    check_offload("offload_optimizer");
    read_offload(zero);
    const std::string reduce = keys_.value("gradient_allreduce_op", "mean");
    if (reduce != "mean" && reduce != "sum")
      fail_at("gradient_allreduce_op", fmt::format("expected mean or sum, found '{}'", printable(reduce)));
    if (reduce == "sum" && stage == 3)
      fail_at("gradient_allreduce_op", "sum is not allowed with zero_optimization.stage 3, as in DeepSpeed");
    config_.gradients_are_summed = reduce == "sum";
  }

  void read_offload(const Json& zero) {
    const auto read = [&](const char* name, std::optional<std::string>* device,
                          std::optional<std::string>* nvme_path) {
      const Json section = zero.value(name, Json::object());
      *device = setting<std::string>(section, "device").value;
      if (*device == "nvme") {
        *nvme_path = setting<std::string>(section, "nvme_path").value;
      } else if (!section.empty()) {
        note_in_memory(fmt::format("zero_optimization.{}", name));
      }
    };
    read("offload_optimizer", &config_.offload_optimizer_device, &config_.offload_optimizer_nvme_path);
    read("offload_param", &config_.offload_param_device, &config_.offload_param_nvme_path);
    const bool has_param = config_.offload_param_device == "nvme";
    for (const char* name : {"buffer_count", "buffer_size", "max_in_cpu"}) {
      if (!has_param || !raw_["zero_optimization"]["offload_param"].contains(name)) continue;
      config_.notes.push_back({fmt::format("zero_optimization.offload_param.{}", name),
                               "embedding, head and three layers are in memory"});
    }
    const Json aio = keys_.value("aio", Json::object());
    if (!has_param && config_.offload_optimizer_device != "nvme") {
      if (keys_.contains("aio")) note_in_memory("aio");
      return;
    }
    config_.aio_block_size = setting<int64_t>(aio, "block_size").value;
    config_.aio_queue_depth = setting<int64_t>(aio, "queue_depth").value;
  }

  void note_in_memory(const std::string& key) {
    config_.notes.push_back({key, "weights, gradients and optimizer state stay in memory"});
  }

  // The keys were checked already, but those without effect must make sense, too.
  void check_offload(const char* name) {
    const Json* zero = raw_.contains("zero_optimization") ? &raw_["zero_optimization"] : nullptr;
    if (zero == nullptr || !zero->is_object() || !zero->contains(name)) return;
    const Json& section = (*zero)[name];
    if (!section.is_object()) return;
    const std::string path = fmt::format("zero_optimization.{}", name);
    const Json device = section.value("device", Json());
    const bool known =
        device.is_null() || device == "auto" || device == "none" || device == "cpu" || device == "nvme";
    if (!known)
      fail_at(path + ".device", fmt::format("expected none, cpu or nvme, found {}", found_text(device)));
    const Json ratio = section.value("ratio", Json());
    if (!ratio.is_number()) return;
    if (!(ratio >= 0 && ratio <= 1))
      fail_at(path + ".ratio", fmt::format("expected a number from 0 to 1, found {}", found_text(ratio)));
    if (ratio < 1 && config_.zero_stage != 3)
      fail_at(path + ".ratio", "below 1 needs zero_optimization.stage 3, as in DeepSpeed");
  }

  void read_optimizer() {
    if (!keys_.contains("optimizer")) return;
    DeepSpeedOptimizer optimizer = optimizer_of_type(keys_["optimizer"].value("type", ""));
    const DeepSpeedOptimizerType type = optimizer.type;
    const Json params = check_params("optimizer", kDeepSpeedOptimizerParams);
    check_params_of(optimizer, params);
    optimizer.momentum = setting<double>(params, "momentum");
    optimizer.lr = setting<double>(params, "lr");
    optimizer.betas = read_betas(params);
    optimizer.eps = setting<double>(params, "eps");
    optimizer.weight_decay = setting<double>(params, "weight_decay");
    optimizer.torch_adam = params.value("torch_adam", false);
    optimizer.decoupled_weight_decay =
        type == DeepSpeedOptimizerType::kAdamW || params.value("adam_w_mode", true);
    config_.optimizer = optimizer;
  }

  DeepSpeedOptimizer optimizer_of_type(const std::string& type) const {
    constexpr const char* kExpected = "expected Adam, AdamW, Lion or Muon, found ";
    if (type.empty()) fail_at("optimizer.type", std::string(kExpected) + "nothing");
    const auto same = [&](std::string_view name) {
      return lower_case(std::string(name)) == lower_case(type);
    };
    for (const auto& [known, name] : {std::pair(DeepSpeedOptimizerType::kAdam, "Adam"),
                                      {DeepSpeedOptimizerType::kAdamW, "AdamW"},
                                      {DeepSpeedOptimizerType::kLion, "Lion"},
                                      {DeepSpeedOptimizerType::kMuon, "Muon"}}) {
      if (!same(name)) continue;
      DeepSpeedOptimizer optimizer;
      optimizer.type = known;
      optimizer.type_name = name;
      return optimizer;
    }
    const bool compresses = same("OneBitAdam") || same("ZeroOneAdam") || same("OneBitLamb");
    fail_at("optimizer.type",
            fmt::format("{}'{}': {}", kExpected, printable(type),
                        compresses ? "gradients rounded to one bit are not supported; use AdamW, and "
                                     "zero_quantized_gradients or zero_quantized_weights for a slow network"
                                   : "no other optimizer is supported"));
  }

  // Parameters of another type.
  void check_params_of(const DeepSpeedOptimizer& optimizer, const Json& params) const {
    const bool is_lion = optimizer.type == DeepSpeedOptimizerType::kLion;
    const bool is_muon = optimizer.type == DeepSpeedOptimizerType::kMuon;
    if (!is_muon && params.contains("momentum"))
      fail_at("optimizer.params.momentum",
              fmt::format("{} has no momentum; leave it out", optimizer.type_name));
    for (const char* name : {"eps", "torch_adam", "adam_w_mode"}) {
      if (is_lion && params.contains(name))
        fail_at(fmt::format("optimizer.params.{}", name),
                fmt::format("Lion has no {}, and DeepSpeed rejects it; leave it out", name));
    }
    if (is_muon && !params.contains("lr"))
      fail_at(
          "optimizer.params.lr",
          "expected a number, found nothing: DeepSpeed's defaults are two, 0.02 for matrices and 3e-4 for "
          "what AdamW trains, and there is one learning rate");
  }

  DeepSpeedSetting<std::vector<double>> read_betas(const Json& params) const {
    const auto found = params.find("betas");
    if (found == params.end()) return {};
    const auto is_number = [](const Json& beta) { return beta.is_number(); };
    const bool is_auto = *found == "auto" || *found == Json({"auto", "auto"});
    if (is_auto) return {true, std::nullopt};
    if (found->size() != 2 || !std::all_of(found->begin(), found->end(), is_number))
      fail_at("optimizer.params.betas",
              fmt::format("expected two numbers such as [0.9, 0.999], found {}", found_text(*found)));
    return {false, found->get<std::vector<double>>()};
  }

  // `owner`.params with canonical values.
  Json check_params(const std::string& owner, const DeepSpeedSection& section) {
    const Json params = keys_[owner].value("params", Json::object());
    return check_deepspeed_keys(params, section, config_.origin, &config_.notes, owner + ".params.");
  }

  void read_scheduler() {
    if (!keys_.contains("scheduler")) return;
    const std::string type = keys_["scheduler"].value("type", "");
    const auto same = [&](const char* name) { return lower_case(name) == lower_case(type); };
    const auto found = std::find_if(std::begin(kScheduleNames), std::end(kScheduleNames), same);
    if (found == std::end(kScheduleNames))
      fail_at("scheduler.type", fmt::format("expected one of {}, found {}", fmt::join(kScheduleNames, ", "),
                                            type.empty() ? "nothing" : "'" + printable(type) + "'"));
    DeepSpeedScheduler scheduler{*found, check_params("scheduler", kDeepSpeedSchedulerParams)};
    const auto steps = setting<int64_t>(scheduler.params, "warmup_num_steps");
    if (steps.value && *steps.value < 1) {
      warn("scheduler.params.warmup_num_steps",
           fmt::format("{} is read as 2, as in DeepSpeed before 0.19; later versions reject it",
                       *steps.value));
      scheduler.params["warmup_num_steps"] = 2;
    }
    config_.scheduler = std::move(scheduler);
  }

  void read_monitors() {
    const auto is_enabled = [&](const char* name) {
      return keys_.contains(name) && keys_[name].value("enabled", false);
    };
    const auto folder_of_monitor = [&](const char* name) -> std::optional<std::string> {
      if (!is_enabled(name)) return std::nullopt;
      const Json& monitor = keys_[name];
      const std::filesystem::path output = monitor.value("output_path", "");
      return (output / monitor.value("job_name", "DeepSpeedJobName")).string();
    };
    config_.tensorboard_dir = folder_of_monitor("tensorboard");
    config_.csv_dir = folder_of_monitor("csv_monitor");
    for (const char* name : {"wandb", "comet"}) {
      if (is_enabled(name))
        warn(name, "has no effect: this service is not supported; --report_to lists those that are");
    }
    for (const char* name : {"tensorboard", "csv_monitor", "wandb", "comet"}) {
      if (keys_.contains(name) && !is_enabled(name)) config_.notes.push_back({name, "it is off"});
    }
  }

  void refuse_what_changes_results() {
    for (const char* name : {"compression_training", "curriculum_learning", "data_efficiency",
                             "progressive_layer_drop", "weight_quantization", "quantize_training"}) {
      if (!keys_.contains(name)) continue;
      if (is_on(name, keys_[name])) fail_at(name, "it changes the result and is not supported; leave it out");
      config_.notes.push_back({name, "it is off"});
    }
    const Json tensor_parallel = keys_.value("tensor_parallel", Json::object());
    const Json size = tensor_parallel.value("autotp_size", Json(0));
    if (size != 0 && size != 1 && size != "auto")
      fail_at("tensor_parallel.autotp_size",
              fmt::format("{} needs several processes and is not supported; leave it out",
                          printable(size.dump())));
    const std::string tag =
        lower_case(keys_.value("checkpoint", Json::object()).value("tag_validation", "warn"));
    if (tag != "warn" && tag != "ignore" && tag != "fail")
      fail_at("checkpoint.tag_validation",
              fmt::format("expected Warn, Ignore or Fail, found '{}'", printable(tag)));
  }

  Json raw_;
  Json keys_;
  DeepSpeedConfig config_;
};

// nullopt if `text` is not base64.
std::optional<std::string> decode_base64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    uint32_t value = 0;
    if (c >= 'A' && c <= 'Z') {
      value = static_cast<uint32_t>(c - 'A');
    } else if (c >= 'a' && c <= 'z') {
      value = static_cast<uint32_t>(c - 'a' + 26);
    } else if (c >= '0' && c <= '9') {
      value = static_cast<uint32_t>(c - '0' + 52);
    } else if (c == '-' || c == '+') {
      value = 62;
    } else if (c == '_' || c == '/') {
      value = 63;
    } else {
      return std::nullopt;
    }
    bits = (bits << 6 | value) & 0xFFFFFF;
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    out += static_cast<char>(bits >> num_bits & 0xFF);
  }
  return out;
}

bool starts_object(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

struct DeepSpeedText {
  std::string text;
  std::string origin;
};

DeepSpeedText deepspeed_text(const std::string& argument) {
  if (starts_object(argument)) return {argument, "--deepspeed"};
  std::error_code ignored;  // too long a name is not a file
  if (std::filesystem::exists(argument, ignored)) return {read_text_file(argument, kMaxFileBytes), argument};
  std::optional<std::string> decoded = decode_base64(argument);
  if (decoded && starts_object(*decoded)) return {std::move(*decoded), "--deepspeed (base64)"};
  fail(ExitCode::kNoInput, "--deepspeed: expected a file, a JSON object or one in base64, found '{}'",
       printable(argument));
}

}  // namespace

DeepSpeedConfig parse_deepspeed_config(std::string_view text, const std::string& origin) {
  return ConfigReader(parse_hjson(text, origin), origin).read();
}

Json read_deepspeed_keys(const std::string& argument) {
  const DeepSpeedText source = deepspeed_text(argument);
  return parse_hjson(source.text, source.origin);
}

DeepSpeedConfig read_deepspeed_config(const std::string& argument) {
  const DeepSpeedText source = deepspeed_text(argument);
  return parse_deepspeed_config(source.text, source.origin);
}

}  // namespace tessera
