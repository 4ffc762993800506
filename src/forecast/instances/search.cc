#include "forecast/instances/search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "context/context_team.h"
#include "devices/planned_card.h"
#include "devices/planned_cpu.h"
#include "forecast/time/planned_step.h"
#include "plan/planned_model.h"
#include "settings/derived.h"
#include "settings/spec_variants.h"

namespace tessera {
namespace {

constexpr int64_t kAllMemory = std::numeric_limits<int64_t>::max() / 2;
constexpr int64_t kNoMemory = 0;

// Memory of a layout with and without what memory permitting makes it faster (packed weights).
struct Variant {
  bool pack_weights = false;
  int64_t node_bytes = 0;
  int64_t card_bytes = 0;  // of a run on a card, which the node's are not
  StepInputs inputs;
};

class Search {
 public:
  Search(const RunSpec& spec, const ModelConfig& config, const JobSize& job,
         const std::vector<Instance>& instances, const SearchOptions& options)
      : spec_(spec),
        config_(config),
        options_(options),
        step_rows_(global_batch_rows(spec.batch_options(1))),
        walks_(config, spec.precision.dtype) {
    result_.is_on_cards = is_on_card();
    result_.instances = instances;
    result_.job = job;
    result_.step_rows = step_rows_;
    result_.num_parameters = walks_.layout().num_parameters();
  }

  SearchResult run() {
    for (size_t i = 0; i < result_.instances.size(); ++i) try_instance(i);
    return std::move(result_);
  }

 private:
  void try_instance(size_t index) {
    RatedCosts op_costs(rates_of(result_.instances[index]));
    Refusal nearest{index, 1, 0, ""};
    bool any = false;
    for (const int num_nodes : node_counts()) {
      std::optional<Combination> best;
      for (const int ranks : rank_counts(result_.instances[index], num_nodes)) {
        try_ranks(index, num_nodes, ranks, op_costs, &best, &nearest);
      }
      if (!best) continue;
      any = true;
      add_money(&*best);
      result_.combinations.push_back(*best);
    }
    if (!any) result_.refusals.push_back(nearest);
  }

  bool is_on_card() const { return spec_.machine.device == DeviceKind::kCuda; }
  MachineRates rates_of(const Instance& instance) const {
    return is_on_card() ? rates_of_card(instance.card.figures, spec_.placement.optimizer_is_on_host())
                        : rates_of_instance(instance.figures);
  }

  std::vector<int> node_counts() const {
    if (options_.num_nodes) return {*options_.num_nodes};
    std::vector<int> counts;
    if (options_.world_size) {
      const int64_t world_size = *options_.world_size;
      if (options_.local_world_size) return {static_cast<int>(world_size / *options_.local_world_size)};
      for (int nodes = 1; nodes <= options_.max_nodes; ++nodes) {
        if (world_size % nodes == 0) counts.push_back(nodes);
      }
      return counts;
    }
    for (int nodes = 1; nodes <= options_.max_nodes; nodes *= 2) counts.push_back(nodes);
    return counts;
  }

  // One or two on each NUMA node: the model of time does not know what threads lose that use the memory of
  // another one. A single rank if a step has too few rows, and however many make up a given number of all.
  std::vector<int> rank_counts(const Instance& instance, int num_nodes) const {
    if (options_.world_size) return {static_cast<int>(*options_.world_size / num_nodes)};
    if (options_.local_world_size) return {*options_.local_world_size};
    const auto per_numa_node = static_cast<int>(instance.num_numa_nodes);
    if (per_numa_node * num_nodes > step_rows_) return {1};
    return {per_numa_node, 2 * per_numa_node};
  }

  // Stages and schedules in the order of their speed. Stage 1 takes more memory than stage 2 and saves
  // nothing, stage 3 gathered per step is stage 2, and ranks of one node share their weights in any stage.
  std::vector<std::pair<int, GatherSchedule>> shardings(int num_nodes, int local_world_size) const {
    if (num_nodes * local_world_size == 1) return {{0, GatherSchedule::kPerStep}};
    const int stage = options_.zero_stage.value_or(2);
    if (num_nodes == 1) return {{stage, GatherSchedule::kPerStep}};
    std::vector<std::pair<int, GatherSchedule>> all;
    if (options_.schedule != GatherSchedule::kPerLayer) all.emplace_back(stage, GatherSchedule::kPerStep);
    if (options_.zero_stage.value_or(3) == 3 && options_.schedule != GatherSchedule::kPerStep &&
        spec_.placement.pack_weights != AutoChoice::kAlways) {
      all.emplace_back(3, GatherSchedule::kPerLayer);
    }
    return all;
  }

  std::vector<bool> checkpointing() const {
    if (options_.gradient_checkpointing) return {*options_.gradient_checkpointing};
    return {false, true};
  }

  // Larger micro-batches take more memory, so the first that does not fit ends the loop. A sharding or
  // checkpointing that saves memory costs time: it is tried only where what is faster does not fit.
  void try_ranks(size_t index, int num_nodes, int local_world_size, OpCosts& op_costs,
                 std::optional<Combination>* best, Refusal* nearest) {
    const Instance& instance = result_.instances[index];
    RunLayout layout;
    layout.num_nodes = num_nodes;
    layout.local_world_size = local_world_size;
    layout.num_threads = instance.figures.num_cores / local_world_size;
    if (spec_.machine.num_threads > 0)
      layout.num_threads = std::min(layout.num_threads, spec_.machine.num_threads);
    if (!context_team_refusal(num_nodes, local_world_size, spec_.sharding.context_parallel_size).empty()) {
      nearest->why = fmt::format("ranks that context_parallel_size {} does not divide",
                                 spec_.sharding.context_parallel_size);
      return;
    }
    const int64_t world_size = num_row_ranks(spec_.sharding, layout.world_size());
    // 1, 2, 4, ... and all rows of a rank, or the number that is asked for.
    const int64_t first_rows = options_.micro_batch_rows.value_or(1);
    const int64_t most_rows = options_.micro_batch_rows.value_or(step_rows_ / world_size);
    bool fits = layout.num_threads >= 1 && first_rows * world_size <= step_rows_;
    if (!fits) {
      nearest->why = layout.num_threads < 1
                         ? "more ranks than cores"
                         : fmt::format("more ranks than the {} of a step", format_count(step_rows_, "row"));
    }
    for (int64_t rows = first_rows; fits; rows = std::min(2 * rows, most_rows)) {
      fits = false;
      layout.micro_batch_rows = rows;
      layout.accumulation = accumulation_of_global_batch(step_rows_, rows, world_size);
      for (const auto& [stage, schedule] : shardings(num_nodes, local_world_size)) {
        layout.zero_stage = stage;
        layout.schedule = schedule;
        bool fits_as_is = false;
        for (const bool recompute : checkpointing()) {
          layout.gradient_checkpointing = recompute;
          if (!try_layout(index, layout, op_costs, best, nearest)) continue;
          fits = true;
          fits_as_is = recompute == checkpointing().front();
          break;
        }
        if (fits_as_is) break;
      }
      if (rows == most_rows) break;
    }
  }

  bool try_layout(size_t index, const RunLayout& layout, OpCosts& op_costs, std::optional<Combination>* best,
                  Refusal* nearest) {
    ++result_.num_tried;
    const Instance& instance = result_.instances[index];
    const std::vector<Variant>& variants = variants_of(layout, instance.figures.amx);
    const auto fitting = std::ranges::find_if(variants, [&](const Variant& each) {
      return each.node_bytes <= instance.usable_bytes() &&
             (!is_on_card() || each.card_bytes <= instance.card.usable_bytes());
    });
    if (fitting == variants.end()) {
      const int64_t needed = is_on_card() ? variants.back().card_bytes : variants.back().node_bytes;
      if (nearest->needed_bytes == 0 || needed < nearest->needed_bytes) {
        nearest->needed_bytes = needed;
        nearest->num_nodes = layout.num_nodes;
      }
      return false;
    }
    const StepTime time = predict_step(walks_, fitting->inputs, op_costs);
    if (!*best || time.step_s() < (*best)->time.step_s()) {
      Combination found;
      found.instance = index;
      found.layout = layout;
      found.pack_weights = fitting->pack_weights;
      found.passes_per_step = fitting->inputs.num_passes;
      found.node_bytes = fitting->node_bytes;
      found.card_bytes = is_on_card() ? fitting->card_bytes : 0;
      found.time = time;
      *best = found;
    }
    return true;
  }

  // Sorted by memory, the most first.
  const std::vector<Variant>& variants_of(const RunLayout& layout, bool has_amx) {
    const auto [entry, is_new] = variants_.try_emplace({layout, has_amx});
    if (!is_new) return entry->second;
    const RunSpec spec = arguments_for(spec_, layout, step_rows_);
    const TrainableModel& model = model_of(layout.num_threads, has_amx);
    const PlannedStep step(spec, model, layout.num_nodes, layout.local_world_size, layout.num_threads,
                           result_.job.max_row_tokens);
    for (const int64_t memory : {kAllMemory, kNoMemory}) {
      MachineResources machine = step.machine(memory);
      if (is_on_card()) machine.free_bytes = memory;
      const MemoryRequest request = step.planner().choose_memory(machine, layout.schedule);
      const MemoryPlan plan = plan_memory(model, request);
      entry->second.push_back({request.limits.pack_weights, plan.node_bytes(), plan.device_bytes(),
                               step.inputs(request, result_.job.mean_row_tokens)});
    }
    return entry->second;
  }

  const TrainableModel& model_of(int64_t num_threads, bool has_amx) {
    std::unique_ptr<PlannedModel>& model = models_[{num_threads, has_amx}];
    if (!model) {
      // The card does not matter here: the memory is compared with each instance's.
      model =
          std::make_unique<PlannedModel>(config_, spec_.precision.dtype, num_threads,
                                         is_on_card() ? planned_card_ops("", 0) : planned_cpu_ops(has_amx),
                                         spec_.sharding.context_parallel_size);
    }
    return *model->model;
  }

  void add_money(Combination* found) const {
    const Instance& instance = result_.instances[found->instance];
    const JobSize& job = result_.job;
    const double step_s = found->time.step_s();
    const double num_steps = static_cast<double>(job.num_steps);
    found->tokens_per_s = job.num_tokens / (num_steps * step_s);
    found->hours = num_steps * step_s / 3600;
    const double node_hours = found->hours * found->layout.num_nodes;
    found->usd = node_hours * instance.usd_per_hour;
    found->spot_usd = found->usd * instance.spot_share;
    if (instance.watts > 0) found->kwh = node_hours * instance.watts / 1000;
  }

  const RunSpec& spec_;
  const ModelConfig& config_;
  const SearchOptions& options_;
  int64_t step_rows_;
  StepWalks walks_;
  // By threads or layout, and whether the processor has AMX.
  std::map<std::pair<int64_t, bool>, std::unique_ptr<PlannedModel>> models_;
  std::map<std::pair<RunLayout, bool>, std::vector<Variant>> variants_;
  SearchResult result_;
};

}  // namespace

RunSpec arguments_for(const RunSpec& spec, const RunLayout& layout, int64_t step_rows) {
  return with_layout(
      spec, {layout.micro_batch_rows, layout.accumulation, step_rows}, layout.zero_stage,
      layout.schedule == GatherSchedule::kPerLayer ? GatherChoice::kPerLayer : GatherChoice::kPerStep,
      layout.gradient_checkpointing);
}

SearchResult search_instances(const RunSpec& spec, const ModelConfig& config, const JobSize& job,
                              const std::vector<Instance>& instances, const SearchOptions& options) {
  return Search(spec, config, job, instances, options).run();
}

MemoryPlan memory_of(const RunSpec& spec, const ModelConfig& config, const JobSize& job,
                     const Instance& instance, const Combination& combination) {
  const RunLayout& layout = combination.layout;
  const RunSpec run = arguments_for(spec, layout, global_batch_rows(spec.batch_options(1)));
  const bool is_on_card = spec.machine.device == DeviceKind::kCuda;
  const OpsFactory ops = is_on_card ? planned_card_ops(instance.card.name, instance.card.usable_bytes())
                                    : planned_cpu_ops(instance.figures.amx);
  const PlannedModel planned(config, spec.precision.dtype, layout.num_threads, ops,
                             spec.sharding.context_parallel_size);
  const PlannedStep step(run, *planned.model, layout.num_nodes, layout.local_world_size, layout.num_threads,
                         job.max_row_tokens);
  MachineResources machine = step.machine(instance.usable_bytes());
  if (is_on_card) machine.free_bytes = instance.card.usable_bytes();
  return plan_memory(*planned.model, step.planner().choose_memory(machine, layout.schedule));
}

}  // namespace tessera
