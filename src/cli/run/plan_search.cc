#include "cli/run/plan_search.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "forecast/instances/search_picture.h"
#include "forecast/text/plan_text.h"
#include "io/file.h"

namespace tessera {
namespace {

// Leaves room for two spaces of indentation and the backslash that continues a line.
constexpr size_t kCommandColumns = kTextColumns - 4;

// Words as lines that a shell joins. A flag and its values stay together.
std::string shell_lines(const std::vector<std::string>& words) {
  std::string text, line;
  for (const std::string& word : words) {
    if (!line.empty() && line.size() + 1 + word.size() > kCommandColumns) {
      text += line + " \\\n";
      line = "   ";
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return text + line + "\n";
}

std::string flag_word(const std::string& name, const std::vector<std::string>& values) {
  std::string word = "--" + name;
  for (const std::string& value : values) word += " " + shell_quoted(value);
  return word;
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

SearchOptions asked_options(const FlagTable& table, const RunSpec& args) {
  SearchOptions options;
  if (args.sharding.stage) options.zero_stage = static_cast<int>(*args.sharding.stage);
  if (args.sharding.gather_schedule != GatherChoice::kAuto) {
    options.schedule = args.sharding.gather_schedule == GatherChoice::kPerLayer ? GatherSchedule::kPerLayer
                                                                                : GatherSchedule::kPerStep;
  }
  if (table.is_set("gradient_checkpointing"))
    options.gradient_checkpointing = args.placement.gradient_checkpointing;
  return options;
}

PlanSearch::PlanSearch(const RunSpec& args, const ModelConfig& config, const JobSize& job,
                       const std::vector<Instance>& instances, const SearchOptions& options,
                       const SearchView& view)
    : args_(args),
      config_(config),
      view_(view),
      result_(search_instances(args, config, job, instances, options)) {}

std::string PlanSearch::command(const std::vector<const Flag*>& given, const std::string& preset) const {
  const std::optional<size_t> best = best_of(result_, view_);
  if (!best) return "";
  const RunLayout& layout = result_.combinations[*best].layout;
  std::vector<std::string> words = {"tessera"};
  if (layout.world_size() > 1) words.emplace_back("launch");
  if (layout.num_nodes > 1) {
    words.push_back(fmt::format("--nnodes {}", layout.num_nodes));
    words.emplace_back("--node_rank 0 --rdzv_endpoint HOST0:29500");
  }
  if (layout.world_size() > 1) words.push_back(fmt::format("--nproc_per_node {}", layout.local_world_size));
  words.emplace_back("train");
  std::set<std::string> names;
  for (const Flag* flag : given) {
    if (is_layout_flag(flag->name)) continue;
    const auto on_hub = args_.model.hub_names.find(flag->name);
    words.push_back(flag_word(flag->name, on_hub == args_.model.hub_names.end()
                                              ? flag->get()
                                              : std::vector<std::string>{on_hub->second}));
    names.insert(flag->name);
  }
  // A file may set what a plan does not need.
  if (!names.contains("config")) {
    if (!names.contains("model")) words.emplace_back(preset.empty() ? "--model DIR" : "--model MODEL");
    if (!names.contains("dataset")) words.emplace_back("--dataset FILE");
    if (!names.contains("output_dir")) words.emplace_back("--output_dir DIR");
  }
  const std::vector<std::string> of_layout = layout_words(layout, result_.step_rows);
  words.insert(words.end(), of_layout.begin(), of_layout.end());
  return shell_lines(words);
}

std::string PlanSearch::text(const std::string& command, const std::string& preset) const {
  std::string text = table_text(result_, view_);
  const std::string refusals = refusal_text(result_, view_);
  const std::optional<size_t> best = best_of(result_, view_);
  if (!best) return text + "\n" + refusals;
  const Combination& combination = result_.combinations[*best];
  const Instance& instance = result_.instances[combination.instance];
  const RunLayout& layout = combination.layout;
  text += fmt::format(
      "\nbest     {} of {}: {} hours\n         {} USD on demand, about {} as spot{}\n",
      format_count(layout.num_nodes, "node"), instance.name, three_digits(combination.hours),
      three_digits(combination.usd), three_digits(combination.spot_usd),
      combination.kwh ? fmt::format(";\n         about {} kWh of processors", three_digits(*combination.kwh))
                      : "");
  text += fmt::format("time     {} s a step\n{}", three_digits(combination.time.step_s()),
                      indented(step_time_text(combination.time)));
  const MemoryPlan memory = memory_of(args_, config_, result_.job, instance, combination);
  text += "memory\n" + indented(memory_table(memory, result_.available_bytes(instance)));
  text += layout.num_nodes > 1 ? "run      on every node, with its node_rank and the address of the first\n"
                               : "run\n";
  if (!preset.empty()) {
    text += fmt::format("  tessera init --preset {} --tokenizer DIR --output MODEL\n", preset);
  }
  text += indented(command);
  return refusals.empty() ? text : text + "\n" + refusals;
}

void PlanSearch::draw(const std::string& path) const {
  write_text_file(path, search_picture(result_, view_));
}

void PlanSearch::check_any_fits() const {
  if (best_of(result_, view_)) return;
  if (!result_.combinations.empty()) {
    const auto least = [&](auto member) { return std::ranges::min(result_.combinations, {}, member); };
    fail(
        ExitCode::kBadConfig,
        "no combination is within --max_hours and --max_price: the fastest takes {} hours, the cheapest {} "
        "USD",
        three_digits(least(&Combination::hours).hours),
        three_digits(money_of(least([&](const Combination& each) { return money_of(each, view_); }), view_)));
  }
  int64_t needed = INT64_MAX, there = 0;
  for (const Refusal& refusal : result_.refusals) {
    if (refusal.needed_bytes > 0) needed = std::min(needed, refusal.needed_bytes);
    there = std::max(there, result_.available_bytes(result_.instances[refusal.instance]));
  }
  if (needed == INT64_MAX) {
    std::set<std::string> reasons;
    for (const Refusal& refusal : result_.refusals) reasons.insert(refusal.why);
    fail(ExitCode::kBadConfig,
         "no instance type has a layout for the ranks asked for: {}: choose others with --nnodes and "
         "--nproc_per_node, or raise --global_batch_size if rows are too few",
         fmt::join(reasons, ", "));
  }
  if (result_.is_on_cards) {
    fail(ExitCode::kBadConfig,
         "the run fits on no instance type: a card needs at least {}, the largest has {}: use "
         "offload_param_device cpu, or shorten --max_length",
         format_bytes(needed), format_bytes(there));
  }
  fail(ExitCode::kBadConfig,
       "the run fits on no instance type: a node needs at least {}, the largest has {}: allow more with "
       "--max_nodes, or shorten --max_length",
       format_bytes(needed), format_bytes(there));
}

}  // namespace tessera
