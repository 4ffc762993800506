#include "cli/deploy/pod_arguments.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/run/plan_search.h"
#include "deploy/job_manifest.h"
#include "deploy/names.h"
#include "hub/repo_name.h"

namespace tessera {
namespace {

// What a flag's value may be besides a path in the pod.
enum class Other { kNothing, kModel, kDataset, kWord };

struct PathFlag {
  const char* name;
  Other other;
};
constexpr PathFlag kPathFlags[] = {
    {"model", Other::kModel},          {"tokenizer", Other::kModel},
    {"dataset", Other::kDataset},      {"eval_dataset", Other::kDataset},
    {"chat_template", Other::kWord},   {"resume_from_checkpoint", Other::kWord},
    {"eval_choices", Other::kNothing}, {"output_dir", Other::kNothing},
    {"logging_dir", Other::kNothing},  {"cache_dir", Other::kNothing},
};

bool is_word(const std::string& text) { return text.find_first_of("/.") == std::string::npos; }

void check_path(const PathFlag& flag, const std::string& value) {
  const std::string path = flag.other == Other::kDataset ? parse_data_source(value).paths.at(0) : value;
  if (path.starts_with('/')) {
    if (path != kDataMount && !path.starts_with(std::string(kDataMount) + "/")) {
      log_warning("--{}: {} is not on the volume at {}: the pods have it only if their image does", flag.name,
                  path, kDataMount);
    }
    return;
  }
  if (flag.other == Other::kModel && hub_model_name(path)) return;
  if (flag.other == Other::kDataset && hub_dataset_name(path)) return;
  if (flag.other == Other::kWord && is_word(path)) return;
  fail(ExitCode::kUsage, "--{}: the pods do not have '{}': expected {}a path on their volume, such as {}/{}",
       flag.name, printable(value),
       flag.other == Other::kModel || flag.other == Other::kDataset ? "a name on the Hugging Face Hub, or "
                                                                    : "",
       kDataMount, printable(path.substr(path.find_last_of('/') + 1)));
}

bool is_among(const std::vector<const Flag*>& given, std::string_view name) {
  return std::ranges::any_of(given, [&](const Flag* flag) { return flag->name == name; });
}

}  // namespace

void check_pod_paths(const TrainingArguments& args, const std::vector<const Flag*>& given) {
  if (!args.deepspeed.empty()) {
    fail(ExitCode::kUsage,
         "--deepspeed: the pods do not have {}: give its settings as flags, which `tessera config show "
         "--deepspeed {}` lists",
         printable(args.deepspeed), shell_quoted(args.deepspeed));
  }
  for (const Flag* flag : given) {
    for (const std::string& value : flag->get()) check_text(flag->name, value);
    const auto row =
        std::ranges::find_if(kPathFlags, [&](const PathFlag& each) { return flag->name == each.name; });
    if (row == std::end(kPathFlags)) continue;
    for (const std::string& value : flag->get()) {
      if (!value.empty()) check_path(*row, value);
    }
  }
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
  for (const Flag* flag : given) {
    if (is_layout_flag(flag->name) || flag->name == "config" || flag->name == "grace_period_s") continue;
    for (const std::string& value : flag->get()) words.push_back(fmt::format("--{}={}", flag->name, value));
  }
  for (std::string word : layout_words(layout, step_rows)) {
    const size_t space = word.find(' ');
    if (space != std::string::npos) word[space] = '=';
    words.push_back(std::move(word));
  }
  return words;
}

}  // namespace tessera
