#include "cli/plan/plan_search.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/plan/plan_job.h"
#include "cli/terminal/terminal.h"
#include "forecast/instances/layout_flags.h"
#include "forecast/instances/search_picture.h"
#include "forecast/text/plan_text.h"
#include "io/file.h"
#include "settings/deepspeed/deepspeed_file.h"

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

// What was found, as `tessera plan` shows it.
class FoundMachines {
 public:
  // All must outlive this.
  FoundMachines(const PlanRequest& request, const RunSpec& spec, const ModelConfig& config,
                const SearchView& view, SearchResult result)
      : request_(request), spec_(spec), config_(config), view_(view), result_(std::move(result)) {}

  const SearchResult& result() const { return result_; }

  // The command line of the best combination on its first node, with the flags given that do not belong to
  // the layout; "" if nothing fits.
  std::string command() const {
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
    for (const Flag* flag : request_.given_flags) {
      if (is_layout_flag(flag->name)) continue;
      const auto on_hub = request_.given.model.hub_names.find(flag->name);
      words.push_back(flag_word(flag->name, on_hub == request_.given.model.hub_names.end()
                                                ? flag->get()
                                                : std::vector<std::string>{on_hub->second}));
      names.insert(flag->name);
    }
    // A file may set what a plan does not need.
    if (!names.contains("config")) {
      if (!names.contains("model"))
        words.emplace_back(request_.preset.empty() ? "--model DIR" : "--model MODEL");
      if (!names.contains("dataset")) words.emplace_back("--dataset FILE");
      if (!names.contains("output_dir")) words.emplace_back("--output_dir DIR");
    }
    const std::vector<std::string> of_layout = layout_words(layout, result_.step_rows);
    words.insert(words.end(), of_layout.begin(), of_layout.end());
    return shell_lines(words);
  }

  std::string text(const std::string& command) const {
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
        combination.kwh
            ? fmt::format(";\n         about {} kWh of processors", three_digits(*combination.kwh))
            : "");
    text += fmt::format("time     {} s a step\n{}", three_digits(combination.time.step_s()),
                        indented(step_time_text(combination.time)));
    const MemoryPlan memory = memory_of(spec_, config_, result_.job, instance, combination);
    text += "memory\n" + indented(memory_table(memory, result_.available_bytes(instance)));
    text += layout.num_nodes > 1 ? "run      on every node, with its node_rank and the address of the first\n"
                                 : "run\n";
    if (!request_.preset.empty()) {
      text += fmt::format("  tessera init --preset {} --tokenizer DIR --output MODEL\n", request_.preset);
    }
    text += indented(command);
    return refusals.empty() ? text : text + "\n" + refusals;
  }

  // Error(kBadConfig) if nothing fits, or nothing within the limits of the view.
  void check_any_fits() const {
    if (best_of(result_, view_)) return;
    if (!result_.combinations.empty()) {
      const auto least = [&](auto member) { return std::ranges::min(result_.combinations, {}, member); };
      fail(
          ExitCode::kBadConfig,
          "no combination is within --max_hours and --max_price: the fastest takes {} hours, the cheapest {} "
          "USD",
          three_digits(least(&Combination::hours).hours),
          three_digits(
              money_of(least([&](const Combination& each) { return money_of(each, view_); }), view_)));
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

 private:
  const PlanRequest& request_;
  const RunSpec& spec_;
  const ModelConfig& config_;
  const SearchView& view_;
  SearchResult result_;
};

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

void search_machines(const PlanSearch& search, const PlanRequest& request, const FlagTable& table) {
  request.check_device_flags(table);
  const ModelConfig config = request.model_config(table);
  SearchOptions options =
      asked_options(request.given.sharding, request.given.placement, table.is_set("gradient_checkpointing"));
  options.max_nodes = static_cast<int>(search.max_nodes);
  if (table.is_set("nnodes")) options.num_nodes = static_cast<int>(request.num_nodes);
  if (table.is_set("nproc_per_node")) options.local_world_size = static_cast<int>(request.local_world_size);
  set_log_level(LogLevel::kError);
  std::optional<DeepSpeedFile> file;
  if (!request.given.sources.deepspeed.empty()) file = read_deepspeed(request.given.sources.deepspeed);
  // For the rows of a step: the combinations have other numbers of ranks, so that what is said about one
  // rank, or those that share its rows, would mislead.
  int64_t world_size = request.given.sharding.context_parallel_size;
  if (file) world_size = file->value<int64_t>("sequence_parallel_size").value_or(world_size);
  const int64_t ranks_of_team = world_size;
  // One rank, unless others are asked for: their number matters here.
  if (request.is_on_device() || request.given.placement.optimizer_in_backward ||
      request.given.placement.param_device == OffloadDevice::kNvme) {
    options.num_nodes = options.num_nodes.value_or(1);
    options.local_world_size = options.local_world_size.value_or(1);
    world_size = int64_t{*options.num_nodes} * *options.local_world_size;
  }
  if (file && file->value<int64_t>("gradient_accumulation_steps")) {
    options.world_size = world_size = ranks_of(*file, options, ranks_of_team);
  }
  RunSpec spec = read_run_spec(table, request.given, world_size);
  set_log_level(spec.reporting.lowest_log_level());
  if (file) {  // it must say the same as the layout
    options.zero_stage = static_cast<int>(*spec.sharding.stage);
    options.micro_batch_rows = spec.batch.rows_per_device;
  }
  if (options.world_size) spec.batch.global_rows = global_batch_rows(spec.batch_options(world_size));

  // To a run on processors a card would cost money and do nothing.
  const std::vector<Instance> whole = plan_catalogue(request.machine.catalogue);
  std::vector<Instance> catalogue = request.is_on_device() ? with_cards(whole) : without_cards(whole);
  // Some are sold in blocks of days only.
  std::erase_if(catalogue, [](const Instance& instance) { return instance.usd_per_hour == 0; });
  const bool all = search.instances.empty() || search.instances == std::vector<std::string>{"all"};
  const JobSize job = job_size(spec, config, 1, request.tokens).value_or(assumed_job(spec, config, 1));
  const FoundMachines found(
      request, spec, config, search.view,
      search_instances(spec, config, job, all ? catalogue : select_instances(catalogue, search.instances),
                       options));
  const std::string command = found.command();
  if (!search.plot.empty()) write_text_file(search.plot, search_picture(found.result(), search.view));
  write_output(request.json ? search_json(found.result(), search.view, command) : found.text(command));
  flush_output();
  found.check_any_fits();
}

namespace {

constexpr Word<SearchOrder> kOrders[] = {
    {"pareto", SearchOrder::kPareto}, {"price", SearchOrder::kPrice}, {"time", SearchOrder::kTime}};

class PlanSearchCommand : public PlanningCommand {
 public:
  std::string name() const override { return "plan search"; }

  void declare_flags(FlagTable* table) override {
    declare_run(table);
    table->begin_section("Search");
    declare(table, "instances", &search_.instances);
    declare(table, "max_nodes", &search_.max_nodes);
    declare_ranks(table);
    declare(table, "sort", &search_.view.order, kOrders);
    declare(table, "top", &search_.view.top);
    declare(table, "max_hours", &search_.view.max_hours);
    declare(table, "max_price", &search_.view.max_price);
    declare(table, "spot", &search_.view.spot);
    declare(table, "plot", &search_.plot);
  }

  void run(FlagTable* table) override {
    set_log_level(request_.given.reporting.lowest_log_level());
    search_machines(search_, request_, *table);
  }

 private:
  PlanSearch search_;
};

}  // namespace

std::unique_ptr<Command> make_plan_search_command() { return std::make_unique<PlanSearchCommand>(); }

}  // namespace tessera
