#include "cluster/deploy/pod_arguments.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cluster/manifests/job_manifest.h"
#include "cluster/manifests/names.h"
#include "comm/network/fabric/fabric_choice.h"
#include "forecast/instances/layout_flags.h"
#include "hub/repo_name.h"
#include "settings/deepspeed/deepspeed_file.h"
#include "settings/run/evaluation_sets.h"

namespace tessera {
namespace {

// A flag for a file or folder may take one of these instead of a path in the pod.
enum class Other { kNothing, kModel, kDataset, kWord };

Other other_of(std::string_view flag) {
  if (flag == "model" || flag == "tokenizer") return Other::kModel;
  if (flag == "dataset" || flag == "eval_dataset") return Other::kDataset;
  if (flag == "chat_template" || flag == "resume_from_checkpoint") return Other::kWord;
  return Other::kNothing;
}

bool takes_path(const Flag& flag) {
  return flag.value_name.find("DIR") != std::string::npos ||
         flag.value_name.find("FILE") != std::string::npos;
}

bool is_word(const std::string& text) { return text.find_first_of("/.") == std::string::npos; }

void check_path(const std::string& flag, const std::string& value, bool has_other_volumes = false) {
  const Other other = other_of(flag);
  const std::string source = flag == "eval_dataset" ? source_of_entry(value) : value;
  const std::string path = other == Other::kDataset ? parse_data_source(source).paths.at(0) : value;
  if (path.starts_with('/')) {
    if (!has_other_volumes && path != kDataMount && !path.starts_with(std::string(kDataMount) + "/")) {
      log_warning("--{}: {} is not on the volume at {}: the pods have it only if their image does", flag,
                  path, kDataMount);
    }
    return;
  }
  if (other == Other::kModel && hub_model_name(path)) return;
  if (other == Other::kDataset && hub_dataset_name(path)) return;
  if (other == Other::kWord && is_word(path)) return;
  fail(ExitCode::kUsage, "--{}: the pods do not have '{}': expected {}a path on their volume, such as {}/{}",
       flag, printable(value),
       other == Other::kModel || other == Other::kDataset ? "a name on the Hugging Face Hub, or " : "",
       kDataMount, printable(path.substr(path.find_last_of('/') + 1)));
}

// A DeepSpeed file as one argument. What the layout decides comes from the flags beside it.
std::string deepspeed_argument(const std::string& given) {
  constexpr size_t kMaxBytes = 64 << 10;  // Linux takes 128 KiB in one argument
  Json keys = read_deepspeed_keys(given);
  for (const char* key :
       {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
    if (keys.contains(key)) keys[key] = "auto";
  }
  std::string text = keys.dump();
  if (text.size() > kMaxBytes) {
    fail(ExitCode::kBadConfig, "--deepspeed: expected at most {} of JSON for a manifest, found {}",
         format_bytes(kMaxBytes), format_bytes(std::ssize(text)));
  }
  return text;
}

bool is_among(const std::vector<const Flag*>& given, std::string_view name) {
  return std::ranges::any_of(given, [&](const Flag* flag) { return flag->name == name; });
}

}  // namespace

void check_pod_paths(const std::vector<const Flag*>& given, bool has_other_volumes) {
  for (const Flag* flag : given) {
    if (flag->name == "deepspeed") continue;  // its text goes into the manifest
    for (const std::string& value : flag->get()) check_text(flag->name, value);
    // The settings of a configuration file are among those given.
    if (!takes_path(*flag) || flag->name == "config") continue;
    for (const std::string& value : flag->get()) {
      if (!value.empty()) check_path(flag->name, value, has_other_volumes);
    }
  }
}

void check_monitors(const ReportingSpec& reporting) {
  for (const std::optional<std::string>& folder :
       {reporting.monitor_tensorboard_dir, reporting.monitor_csv_dir}) {
    if (folder && folder->starts_with('/')) check_path("deepspeed", *folder);
  }
}

void check_fabric(const NetworkSpec& network, const std::string& image, bool image_is_given,
                  int64_t num_efa) {
  if (network.fabric.is_tcp()) {
    if (num_efa > 0) log_warning("--efa {}: the run uses TCP; --fabric efa uses the interfaces", num_efa);
    return;
  }
  if (!image_is_given) {
    fail(ExitCode::kUsage,
         "--fabric {} needs libfabric, which the image {} does not have: build one with `--build-arg "
         "FABRIC=yes` (docs/image.md) and name it with --image",
         printable(fabric_name(network.fabric)), image);
  }
  if (network.fabric.provider == kEfaProvider && num_efa == 0)
    fail(ExitCode::kUsage, "--fabric efa: the pods have no EFA interface: ask for some with --efa N");
}

void check_fit(const PlacementSpec& placement) {
  if (!placement.fit) return;
  fail(ExitCode::kUsage,
       "--fit: a manifest is planned with one form of the run: give its settings, such as "
       "--gradient_checkpointing or --optim adamw_8bit; `tessera plan` says what other forms take");
}

void check_resume(const ResumeSpec& resume) {
  if (resume.from != ResumeSpec::From::kNewest && resume.from != ResumeSpec::From::kFolder) return;
  log_warning(
      "--resume_from_checkpoint {}: pods that replace others, as those of spot nodes do, begin there again; "
      "with auto they go on from the newest checkpoint",
      resume_text(resume));
}

void check_offload(const PlacementSpec& placement) {
  const bool is_used = placement.optimizer_device == OffloadDevice::kNvme ||
                       placement.param_device == OffloadDevice::kNvme || placement.offloads_inputs();
  if (!is_used && placement.offload_dir.empty()) return;
  if (placement.offload_dir.starts_with(std::string(kDataMount) + "/")) {
    log_warning("--offload_dir: {} is on the volume, so that every step moves its bytes over the network",
                placement.offload_dir);
    return;
  }
  fail(ExitCode::kBadConfig,
       "offload_dir{}: the pods have no disk of their own (/tmp holds 8 GiB): name a folder on their volume, "
       "such as --offload_dir {}/offload, whose every step goes over the network, or keep everything in "
       "memory: more nodes, or an instance type with more of it",
       placement.offload_dir.empty() ? "" : " " + printable(placement.offload_dir), kDataMount);
}

std::vector<std::string> given_words(const std::vector<const Flag*>& given) {
  std::vector<std::string> words;
  for (const Flag* flag : given) {
    if (flag->name == "config" || flag->name == "grace_period_s") continue;
    for (const std::string& value : flag->get()) {
      words.push_back(
          fmt::format("--{}={}", flag->name, flag->name == "deepspeed" ? deepspeed_argument(value) : value));
    }
  }
  return words;
}

std::vector<std::string> pod_arguments(const std::vector<const Flag*>& given, const RunLayout& layout,
                                       int64_t step_rows, const std::string& job) {
  std::vector<std::string> words;
  const auto add_default = [&](const char* flag, const std::string& value) {
    if (!is_among(given, flag)) words.push_back(fmt::format("--{}={}", flag, value));
  };
  add_default("resume_from_checkpoint", "auto");
  add_default("output_dir", fmt::format("{}/runs/{}", kDataMount, job));
  add_default("metrics_port", "9400");
  add_default("metrics_host", "0.0.0.0");
  std::vector<const Flag*> kept;
  std::ranges::copy_if(given, std::back_inserter(kept),
                       [](const Flag* flag) { return !is_layout_flag(flag->name); });
  for (std::string& word : given_words(kept)) words.push_back(std::move(word));
  for (std::string word : layout_words(layout, step_rows)) {
    const size_t space = word.find(' ');
    if (space != std::string::npos) word[space] = '=';
    words.push_back(std::move(word));
  }
  return words;
}

}  // namespace tessera
