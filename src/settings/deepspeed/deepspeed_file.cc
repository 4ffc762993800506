#include "settings/deepspeed/deepspeed_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <span>

#include "base/base64.h"
#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/hjson.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr int64_t kMaxDeepSpeedBytes = 16 << 20;

constexpr std::string_view kOptimizers[] = {"Adam", "AdamW", "Lion", "Muon"};
constexpr std::string_view kSchedulers[] = {"LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR",
                                            "WarmupCosineLR"};
constexpr std::string_view kInMemory = "weights, gradients and optimizer state stay in memory";

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

class DeepSpeedReader {
 public:
  DeepSpeedReader(Json raw, const std::string& origin) : raw_(std::move(raw)) { file_.origin = origin; }

  DeepSpeedFile read() {
    rewrite_deprecated();
    check_type("optimizer", kOptimizers);
    check_type("scheduler", kSchedulers);
    file_.keys = check_deepspeed_keys(raw_, file_.origin, &file_.notes);
    check_numbers();
    check_precision();
    check_zero();
    if (file_.keys.contains("optimizer")) check_optimizer(&file_.keys["optimizer"]);
    if (file_.keys.contains("scheduler")) check_scheduler(&file_.keys["scheduler"]);
    note_monitors();
    refuse_what_changes_results();
    return std::move(file_);
  }

 private:
  [[noreturn]] void fail_at(const std::string& key, const std::string& message) const {
    fail(ExitCode::kBadConfig, "{}: {}: {}", file_.origin, key, message);
  }
  void note(const std::string& key, std::string_view text) {
    file_.notes.push_back({key, std::string(text)});
  }
  void warn(const std::string& key, const std::string& text) { file_.notes.push_back({key, text, true}); }

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

  // The type of optimizer or schedule becomes DeepSpeed's spelling of it.
  void check_type(const char* section, std::span<const std::string_view> known) {
    const auto found = raw_.find(section);
    if (found == raw_.end() || !found->is_object()) return;
    Json& type = (*found)["type"];
    if (!type.is_string() && !type.is_null()) return;  // refused with the other keys
    const std::string name = type.is_null() ? "" : lower_case(type.get<std::string>());
    const auto same = std::ranges::find_if(
        known, [&](std::string_view each) { return lower_case(std::string(each)) == name; });
    if (same != known.end()) {
      type = *same;
      return;
    }
    const bool compresses = name == "onebitadam" || name == "zerooneadam" || name == "onebitlamb";
    fail_at(fmt::format("{}.type", section),
            fmt::format("expected one of {}, found {}{}", fmt::join(known, ", "),
                        name.empty() ? "nothing" : "'" + printable(type.get<std::string>()) + "'",
                        compresses ? ": gradients rounded to one bit are not supported; use AdamW, and "
                                     "zero_quantized_gradients or zero_quantized_weights for a slow network"
                                   : ""));
  }

  void check_numbers() const {
    for (const char* name : {"train_batch_size", "sequence_parallel_size", "train_micro_batch_size_per_gpu",
                             "gradient_accumulation_steps"}) {
      const std::optional<int64_t> number = file_.value<int64_t>(name);
      if (number && *number < 1)
        fail_at(name, fmt::format("expected a whole number of at least 1, found {}", *number));
    }
    const int64_t stage = file_.value<int64_t>("zero_optimization.stage").value_or(0);
    if (stage < 0 || stage > 3)
      fail_at("zero_optimization.stage", fmt::format("expected 0, 1, 2 or 3, found {}", stage));
  }

  void check_precision() {
    Json& keys = file_.keys;
    if (keys.contains("bf16") && !keys["bf16"].contains("enabled")) keys["bf16"]["enabled"] = false;
    if (raw_.contains("data_types")) {
      const Json kept = raw_["data_types"].value("keep_in_fp32_modules", Json("auto"));
      const bool is_list =
          kept.is_array() && std::ranges::all_of(kept, [](const Json& each) { return each.is_string(); });
      if (kept != "auto" && !kept.is_null() && !is_list)
        fail_at("data_types.keep_in_fp32_modules",
                fmt::format("expected \"auto\" or a list of names, found {}", found_text(kept)));
    }
    if (lower_case(file_.value<std::string>("communication_data_type").value_or("")) != "fp16") return;
    warn("communication_data_type",
         "fp16 is not used: gradients are reduced in the type of the weights, which cannot overflow");
    keys.erase("communication_data_type");
  }

  void check_zero() {
    check_offload("offload_optimizer");
    check_offload("offload_param");
    const bool has_param = file_.keeps_on_disk("offload_param");
    for (const char* name : {"buffer_count", "buffer_size", "max_in_cpu"}) {
      if (has_param && raw_["zero_optimization"]["offload_param"].contains(name))
        note(fmt::format("zero_optimization.offload_param.{}", name),
             "embedding, head and three layers are in memory");
    }
    if (file_.keys.contains("aio") && !has_param && !file_.keeps_on_disk("offload_optimizer"))
      note("aio", kInMemory);
    const std::string reduce = file_.value<std::string>("gradient_allreduce_op").value_or("mean");
    if (reduce != "mean" && reduce != "sum")
      fail_at("gradient_allreduce_op", fmt::format("expected mean or sum, found '{}'", printable(reduce)));
    if (reduce == "sum" && file_.value<int64_t>("zero_optimization.stage") == 3)
      fail_at("gradient_allreduce_op", "sum is not allowed with zero_optimization.stage 3, as in DeepSpeed");
  }

  // Keys without effect must make sense, too.
  void check_offload(const char* name) {
    const std::string path = fmt::format("zero_optimization.{}", name);
    const Json* found = file_.find(path);
    if (found == nullptr) return;
    const std::optional<std::string> device = file_.value<std::string>(path + ".device");
    if (device && *device != "none" && *device != "cpu" && *device != "nvme")
      fail_at(path + ".device",
              fmt::format("expected none, cpu or nvme, found {}", found_text(Json(*device))));
    if (device != "nvme") {
      if (!found->empty()) note(path, kInMemory);
      file_.keys["zero_optimization"][name].erase("nvme_path");
    }
    const Json ratio = raw_["zero_optimization"][name].value("ratio", Json());
    if (!ratio.is_number()) return;
    if (!(ratio >= 0 && ratio <= 1))
      fail_at(path + ".ratio", fmt::format("expected a number from 0 to 1, found {}", found_text(ratio)));
    if (ratio < 1 && file_.value<int64_t>("zero_optimization.stage") != 3)
      fail_at(path + ".ratio", "below 1 needs zero_optimization.stage 3, as in DeepSpeed");
  }

  // Parameters of another type.
  void check_optimizer(Json* optimizer) const {
    const std::string type = (*optimizer)["type"].get<std::string>();
    Json& params = (*optimizer)["params"];
    if (params.is_null()) params = Json::object();
    if (type != "Muon" && params.contains("momentum"))
      fail_at("optimizer.params.momentum", fmt::format("{} has no momentum; leave it out", type));
    for (const char* name : {"eps", "torch_adam", "adam_w_mode"}) {
      if (type == "Lion" && params.contains(name))
        fail_at(fmt::format("optimizer.params.{}", name),
                fmt::format("Lion has no {}, and DeepSpeed rejects it; leave it out", name));
    }
    if (type == "Muon" && !params.contains("lr"))
      fail_at(
          "optimizer.params.lr",
          "expected a number, found nothing: DeepSpeed's defaults are two, 0.02 for matrices and 3e-4 for "
          "what AdamW trains, and there is one learning rate");
    const auto betas = params.find("betas");
    if (betas == params.end() || *betas == "auto") return;
    if (*betas == Json({"auto", "auto"})) {
      *betas = "auto";
    } else if (betas->size() != 2 ||
               !std::ranges::all_of(*betas, [](const Json& beta) { return beta.is_number(); })) {
      fail_at("optimizer.params.betas",
              fmt::format("expected two numbers such as [0.9, 0.999], found {}", found_text(*betas)));
    }
  }

  void check_scheduler(Json* scheduler) {
    Json& params = (*scheduler)["params"];
    if (params.is_null()) params = Json::object();
    const std::optional<int64_t> steps = file_.value<int64_t>("scheduler.params.warmup_num_steps");
    if (!steps || *steps >= 1) return;
    warn("scheduler.params.warmup_num_steps",
         fmt::format("{} is read as 2, as in DeepSpeed before 0.19; later versions reject it", *steps));
    params["warmup_num_steps"] = 2;
  }

  void note_monitors() {
    for (const char* name : {"tensorboard", "csv_monitor", "wandb", "comet"}) {
      const bool is_enabled = file_.value<bool>(fmt::format("{}.enabled", name)).value_or(false);
      const bool is_service = name == std::string_view("wandb") || name == std::string_view("comet");
      if (is_enabled && is_service)
        warn(name, "has no effect: this service is not supported; --report_to lists those that are");
      if (!is_enabled && file_.keys.contains(name)) note(name, "it is off");
    }
  }

  void refuse_what_changes_results() {
    for (const char* name : {"compression_training", "curriculum_learning", "data_efficiency",
                             "progressive_layer_drop", "weight_quantization", "quantize_training"}) {
      if (!file_.keys.contains(name)) continue;
      if (is_on(name, file_.keys[name]))
        fail_at(name, "it changes the result and is not supported; leave it out");
      note(name, "it is off");
    }
    const Json* autotp_size = file_.find("tensor_parallel.autotp_size");
    const Json size = autotp_size == nullptr ? Json(0) : *autotp_size;
    if (size != 0 && size != 1 && size != "auto")
      fail_at("tensor_parallel.autotp_size",
              fmt::format("{} needs several processes and is not supported; leave it out",
                          printable(size.dump())));
    const std::string tag =
        lower_case(file_.value<std::string>("checkpoint.tag_validation").value_or("warn"));
    if (tag != "warn" && tag != "ignore" && tag != "fail")
      fail_at("checkpoint.tag_validation",
              fmt::format("expected Warn, Ignore or Fail, found '{}'", printable(tag)));
  }

  Json raw_;
  DeepSpeedFile file_;
};

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
  if (std::filesystem::exists(argument, ignored))
    return {read_text_file(argument, kMaxDeepSpeedBytes), argument};
  std::optional<std::string> decoded = decode_base64(argument);
  if (decoded && starts_object(*decoded)) return {std::move(*decoded), "--deepspeed (base64)"};
  fail(ExitCode::kNoInput, "--deepspeed: expected a file, a JSON object or one in base64, found '{}'",
       printable(argument));
}

}  // namespace

const Json* DeepSpeedFile::find(std::string_view path) const {
  const Json* found = &keys;
  while (!path.empty()) {
    const std::string name(path.substr(0, path.find('.')));
    if (!found->is_object() || !found->contains(name)) return nullptr;
    found = &(*found)[name];
    path.remove_prefix(std::min(name.size() + 1, path.size()));
  }
  return found;
}

bool DeepSpeedFile::keeps_on_disk(std::string_view offload_section) const {
  return value<std::string>(fmt::format("zero_optimization.{}.device", offload_section)) == "nvme";
}

std::optional<std::string> DeepSpeedFile::monitor_folder(std::string_view monitor) const {
  const auto text = [&](const char* key, const char* otherwise) {
    return value<std::string>(fmt::format("{}.{}", monitor, key)).value_or(otherwise);
  };
  if (!value<bool>(fmt::format("{}.enabled", monitor)).value_or(false)) return std::nullopt;
  return (std::filesystem::path(text("output_path", "")) / text("job_name", "DeepSpeedJobName")).string();
}

DeepSpeedFile parse_deepspeed(std::string_view text, const std::string& origin) {
  return DeepSpeedReader(parse_hjson(text, origin), origin).read();
}

Json read_deepspeed_keys(const std::string& argument) {
  const DeepSpeedText source = deepspeed_text(argument);
  return parse_hjson(source.text, source.origin);
}

DeepSpeedFile read_deepspeed(const std::string& argument) {
  const DeepSpeedText source = deepspeed_text(argument);
  return parse_deepspeed(source.text, source.origin);
}

void log_deepspeed_notes(const DeepSpeedFile& file, int64_t world_size) {
  std::map<std::string, std::vector<std::string>> keys_by_reason;
  if (world_size == 1) {
    for (const char* name : {"zero_optimization.stage", "zero_optimization.stage3_max_live_parameters",
                             "zero_optimization.stage3_prefetch_bucket_size",
                             "zero_optimization.stage3_param_persistence_threshold",
                             "zero_optimization.overlap_comm", "zero_optimization.zero_quantized_weights",
                             "zero_optimization.zero_quantized_gradients", "communication_data_type"}) {
      const Json* value = file.find(name);
      if (value != nullptr && *value != 0) keys_by_reason["there is one rank"].emplace_back(name);
    }
  }
  for (const DeepSpeedNote& note : file.notes) {
    if (note.is_warning) {
      log_warning("{}: {}: {}", file.origin, note.key, note.text);
    } else {
      keys_by_reason[note.text].push_back(note.key);
    }
  }
  for (const auto& [reason, keys] : keys_by_reason)
    log_info("{}: without effect, as {}: {}", file.origin, reason, fmt::join(keys, ", "));
}

}  // namespace tessera
