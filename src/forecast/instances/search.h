// Searches a catalogue for the machines on which a run takes the least time or money: for every instance type
// and number of nodes the fastest combination of ranks, sharding, checkpointing and micro-batch that fits in
// memory. All of them compute the same steps: the rows of a step are those of the arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "forecast/instances/catalogue.h"
#include "forecast/text/job_size.h"
#include "forecast/time/step_time.h"
#include "formats/huggingface/model_config.h"
#include "plan/memory_plan.h"
#include "settings/run_settings.h"

namespace tessera {

struct SearchOptions {
  int max_nodes = 16;  // tries 1, 2, 4, ... of them
  // If given, only these numbers are tried.
  std::optional<int> num_nodes;
  std::optional<int> local_world_size;
  std::optional<int64_t> world_size;  // on any number of nodes that divides it; a multiple of the two above
  std::optional<int> zero_stage;
  std::optional<GatherSchedule> schedule;
  std::optional<bool> gradient_checkpointing;
  std::optional<int64_t> micro_batch_rows;
};

// The layout of a run on machines.
struct RunLayout {
  int num_nodes = 1;
  int local_world_size = 1;
  int64_t num_threads = 1;  // of a rank
  int zero_stage = 0;
  GatherSchedule schedule = GatherSchedule::kPerStep;
  bool gradient_checkpointing = false;
  int64_t micro_batch_rows = 1;
  int64_t accumulation = 1;

  int world_size() const { return num_nodes * local_world_size; }
  auto operator<=>(const RunLayout&) const = default;
};

struct Combination {
  size_t instance = 0;  // in SearchResult::instances
  RunLayout layout;
  bool pack_weights = false;
  int64_t passes_per_step = 1;  // of a rank
  int64_t node_bytes = 0;       // without the optional buffers for checkpoints in the background
  int64_t card_bytes = 0;       // of a run on a card
  StepTime time;
  double tokens_per_s = 0;
  double hours = 0;
  double usd = 0;  // on demand
  double spot_usd = 0;
  std::optional<double> kwh;  // processors and what the catalogue counts with them
};

// Why an instance type is in no combination.
struct Refusal {
  size_t instance = 0;
  int num_nodes = 1;         // with which it came nearest
  int64_t needed_bytes = 0;  // of a node, or of its card, at the least; 0: no layout has its ranks
  std::string why;           // for these: what the ranks lack
};

struct SearchResult {
  bool is_on_cards = false;
  std::vector<Instance> instances;
  int64_t num_parameters = 0;
  int64_t step_rows = 0;
  JobSize job;
  std::vector<Combination> combinations;  // one for each instance type and number of nodes that fits
  std::vector<Refusal> refusals;
  int64_t num_tried = 0;  // layouts on instance types

  // The memory that matters most: a node's or, on cards, a card's.
  int64_t used_bytes(const Combination& combination) const {
    return is_on_cards ? combination.card_bytes : combination.node_bytes;
  }
  int64_t available_bytes(const Instance& instance) const {
    return is_on_cards ? instance.card.usable_bytes() : instance.usable_bytes();
  }
};

// `spec` must be resolved for one rank. For device cuda every instance needs a card, which a single rank
// uses.
SearchResult search_instances(const RunSpec& spec, const ModelConfig& config, const JobSize& job,
                              const std::vector<Instance>& instances, const SearchOptions& options);

// `spec` as a run with this layout has them.
RunSpec arguments_for(const RunSpec& spec, const RunLayout& layout, int64_t step_rows);

// The memory of a combination by kind.
MemoryPlan memory_of(const RunSpec& spec, const ModelConfig& config, const JobSize& job,
                     const Instance& instance, const Combination& combination);

}  // namespace tessera
