#include "forecast/instances/layout_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "base/text.h"
#include "forecast/text/plan_text.h"
#include "settings/deepspeed/deepspeed_file.h"
#include "settings/spec_variants.h"

namespace tessera {
namespace {

// Words as lines that a shell joins. A flag and its values stay together.
std::string shell_lines(const std::vector<std::string>& words) {
  // Leaves room for two spaces of indentation and the backslash that continues a line.
  constexpr size_t kColumns = kTextColumns - 4;
  std::string text, line;
  for (const std::string& word : words) {
    if (!line.empty() && line.size() + 1 + word.size() > kColumns) {
      text += line + " \\\n";
      line = "   ";
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return text + line + "\n";
}

// A DeepSpeed file that states how often ranks accumulate is for one number of ranks.
int64_t ranks_of(const DeepSpeedFile& file, const SearchOptions& options, int64_t ranks_of_team) {
  constexpr int64_t kMostRanks = 1 << 20;
  const std::optional<int64_t> micro_batch = file.value<int64_t>("train_micro_batch_size_per_gpu"),
                               all = file.value<int64_t>("train_batch_size");
  int64_t num_ranks = std::min(ranks_of_team, kMostRanks);
  if (micro_batch && all) {
    num_ranks *= std::clamp<int64_t>(
        *all / *micro_batch / *file.value<int64_t>("gradient_accumulation_steps"), 1, kMostRanks);
  }
  // What was asked for is kept, and named where it contradicts the file.
  const int64_t given = int64_t{options.num_nodes.value_or(1)} * options.local_world_size.value_or(1);
  const bool is_given = options.num_nodes && options.local_world_size;
  return is_given || num_ranks % given != 0 ? given : num_ranks;
}

}  // namespace

bool is_layout_flag(const std::string& name) {
  static const std::set<std::string> kOfLayout = {"per_device_train_batch_size",
                                                  "gradient_accumulation_steps",
                                                  "global_batch_size",
                                                  "gradient_checkpointing",
                                                  "zero_stage",
                                                  "gather_schedule"};
  return kOfLayout.contains(name);
}

std::vector<std::string> layout_words(const RunLayout& layout, int64_t step_rows) {
  std::vector<std::string> words = {fmt::format("--per_device_train_batch_size {}", layout.micro_batch_rows),
                                    fmt::format("--gradient_accumulation_steps {}", layout.accumulation)};
  if (layout.micro_batch_rows * layout.accumulation * layout.world_size() != step_rows) {
    words.push_back(fmt::format("--global_batch_size {}", step_rows));
  }
  if (layout.gradient_checkpointing) words.emplace_back("--gradient_checkpointing");
  if (layout.world_size() > 1) words.push_back(fmt::format("--zero_stage {}", layout.zero_stage));
  if (layout.schedule == GatherSchedule::kPerLayer) words.emplace_back("--gather_schedule per_layer");
  return words;
}

SearchOptions asked_options(const ShardingSpec& sharding, const PlacementSpec& placement,
                            bool checkpointing_is_given) {
  SearchOptions options;
  if (sharding.stage) options.zero_stage = static_cast<int>(*sharding.stage);
  if (sharding.gather_schedule != GatherChoice::kAuto) {
    options.schedule = sharding.gather_schedule == GatherChoice::kPerLayer ? GatherSchedule::kPerLayer
                                                                           : GatherSchedule::kPerStep;
  }
  if (checkpointing_is_given) options.gradient_checkpointing = placement.gradient_checkpointing;
  return options;
}

RunSpec searched_spec(const FlagTable& table, const RunSpec& given, SearchOptions* options) {
  std::optional<DeepSpeedFile> file;
  if (!given.sources.deepspeed.empty()) file = read_deepspeed(given.sources.deepspeed);
  int64_t world_size = given.sharding.context_parallel_size;
  if (file) world_size = file->value<int64_t>("sequence_parallel_size").value_or(world_size);
  const int64_t ranks_of_team = world_size;
  if (given.machine.device != DeviceKind::kCpu || given.placement.optimizer_in_backward ||
      given.placement.param_device == OffloadDevice::kNvme) {
    options->num_nodes = options->num_nodes.value_or(1);
    options->local_world_size = options->local_world_size.value_or(1);
    world_size = int64_t{*options->num_nodes} * *options->local_world_size;
  }
  if (file && file->value<int64_t>("gradient_accumulation_steps")) {
    options->world_size = world_size = ranks_of(*file, *options, ranks_of_team);
  }
  const RunSpec spec = read_run_spec(table, given, world_size);
  if (file) {  // it must say the same as the layout
    options->zero_stage = static_cast<int>(*spec.sharding.stage);
    options->micro_batch_rows = spec.batch.rows_per_device;
  }
  if (!options->world_size) return spec;
  return with_rows(spec, {spec.batch.rows_per_device, spec.batch.accumulation_steps,
                          global_batch_rows(spec.batch_options(world_size))});
}

std::string launch_command(const RunLayout& layout, int64_t step_rows, const std::vector<GivenFlag>& given,
                           const std::string& model_placeholder) {
  std::vector<std::string> words = {"tessera"};
  if (layout.world_size() > 1) words.emplace_back("launch");
  if (layout.num_nodes > 1) {
    words.push_back(fmt::format("--nnodes {}", layout.num_nodes));
    words.emplace_back("--node_rank 0 --rdzv_endpoint HOST0:29500");
  }
  if (layout.world_size() > 1) words.push_back(fmt::format("--nproc_per_node {}", layout.local_world_size));
  words.emplace_back("train");
  std::set<std::string> names;
  for (const auto& [name, values] : given) {
    if (is_layout_flag(name)) continue;
    names.insert(name);
    words.push_back("--" + name);
    for (const std::string& value : values) words.back() += " " + shell_quoted(value);
  }
  // A file may set what a plan does not need.
  if (!names.contains("config")) {
    if (!names.contains("model")) words.push_back("--model " + model_placeholder);
    if (!names.contains("dataset")) words.emplace_back("--dataset FILE");
    if (!names.contains("output_dir")) words.emplace_back("--output_dir DIR");
  }
  std::ranges::copy(layout_words(layout, step_rows), std::back_inserter(words));
  return shell_lines(words);
}

}  // namespace tessera
