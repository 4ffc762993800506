#include "forecast/fit/fit_options.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>

#include "base/error.h"
#include "forecast/time/planned_step.h"
#include "plan/planned_model.h"
#include "settings/derived.h"

namespace tessera {
namespace {

// Whether a makes b pointless: a is at least as fast, and b saves less than a tenth of its memory, which is
// not worth the time.
bool replaces(const FitOption& a, const FitOption& b) {
  return 10 * a.memory_bytes <= 11 * b.memory_bytes &&
         std::ranges::equal(a.changes, b.changes, std::ranges::less_equal());
}

// Sorts the fastest first; of forms within about 1 %, the one that changes the numbers least.
auto by_speed(const FitOption& option) {
  return std::tuple(std::llround(100 * std::log(option.time.step_s())), option.changes, option.time.step_s());
}

// The options that no faster one replaces, the fastest first.
std::vector<size_t> needed(const std::vector<FitOption>& all, std::vector<size_t> of) {
  std::ranges::stable_sort(of, {}, [&](size_t i) { return by_speed(all[i]); });
  std::vector<size_t> out;
  for (const size_t i : of) {
    if (std::ranges::none_of(out, [&](size_t j) { return replaces(all[j], all[i]); })) out.push_back(i);
  }
  return out;
}

class OptionPlanner {
 public:
  // `spec` in place of the request's.
  OptionPlanner(const RunSpec& spec, const FitRequest& request)
      : spec_(spec), request_(request), op_costs_(request.rates) {
    // Asking may take long.
    data_ = request.data;
    data_.largest_pass = [this](int64_t micro_batches) {
      const auto [found, is_new] = largest_pass_.try_emplace(micro_batches, 0);
      if (is_new) found->second = request_.data.largest_pass(micro_batches);
      return found->second;
    };
  }

  FitOptions run() {
    const TrainableModel& model = *planned(spec_).of_sizes.model;
    const MachineResources& machine = request_.machine;
    FitOptions options(spec_);
    options.memory_bytes = machine.free_bytes + machine.local_world_size * machine.baseline_bytes;
    options.free_disk_bytes = request_.free_disk_bytes;
    options.disk_gb_per_s = request_.rates.disk_gb_per_s;
    const DiskPlan disk = plan_disk(
        model.layout(), {spec_.precision.export_dtype(), saved_tensors_of(spec_, machine.num_nodes)},
        /*count=*/{});
    options.model_bytes = request_.holds_model ? disk.model_bytes : 0;
    for (const NamedCandidate& candidate : candidates_of(spec_)) {
      if (std::optional<FitOption> option = option_of(candidate, options)) options.all.push_back(*option);
    }
    options.best = least(options.all, [](const FitOption& option) {
      return std::tuple(option.changes, option.time.step_s());
    });
    options.fastest = least(options.all, by_speed);
    const RunSpec chosen =
        options.best ? with_candidate(spec_, options.all[*options.taken()].candidate, request_.world_size())
                     : spec_;
    options.checkpoint_bytes =
        plan_disk(model.layout(),
                  {chosen.precision.export_dtype(), saved_tensors_of(chosen, machine.num_nodes)},
                  /*count=*/{})
            .checkpoint_bytes;
    return options;
  }

 private:
  struct Planned {
    Planned(const ModelConfig& config, const FitRequest& request)
        : of_sizes(config, request.spec.precision.dtype, request.num_threads, request.ops,
                   request.spec.sharding.context_parallel_size),
          walks(config, request.spec.precision.dtype) {}

    PlannedModel of_sizes;
    StepWalks walks;
  };

  // The model in the form that its frozen weights have with these arguments.
  Planned& planned(const RunSpec& spec) {
    ModelConfig config = request_.config;
    config.base_quantization = base_quantization_of(spec.base);
    std::unique_ptr<Planned>& model = planned_[config.base_quantization];
    if (!model) {
      model = std::make_unique<Planned>(config, request_);
    }
    return *model;
  }

  // The first option that fits with the least `order`.
  static std::optional<size_t> least(const std::vector<FitOption>& all, auto order) {
    std::optional<size_t> found;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].fits() && (!found || order(all[i]) < order(all[*found]))) found = i;
    }
    return found;
  }

  // nullopt if other settings rule the candidate out, or if it is another one.
  std::optional<FitOption> option_of(const NamedCandidate& candidate, const FitOptions& options) {
    try {
      const RunSpec spec = with_candidate(spec_, candidate.candidate, request_.world_size());
      return option_with(spec, candidate, options);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kBadConfig) throw;
      return std::nullopt;
    }
  }

  std::optional<FitOption> option_with(const RunSpec& spec, const NamedCandidate& candidate,
                                       const FitOptions& options) {
    auto& [of_sizes, walks] = planned(spec);
    const TrainableModel& model = *of_sizes.model;
    const MachineResources& machine = request_.machine;
    const RunPlanner planner(spec, model, request_.batch, data_);
    const MemoryRequest memory = planner.choose_memory(machine);
    // Nothing is kept beyond the inputs: that is `full`, unless it was asked for.
    if (memory.limits.num_kept_outputs == 0 && spec.placement.gradient_checkpointing &&
        spec.placement.checkpointing_mode == CheckpointingMode::kSelective &&
        !spec_.sources.given.contains("gradient_checkpointing_mode")) {
      return std::nullopt;
    }
    FitOption option;
    static_cast<NamedCandidate&>(option) = candidate;
    option.memory_bytes = plan_memory(model, memory).node_bytes();
    const ZeroSettings settings = zero_settings(model, memory);
    option.disk_bytes = offload_bytes(model, machine.num_nodes, machine.local_world_size, settings) +
                        machine.local_world_size * planner.offloaded_input_bytes();
    option.discarded_disk_bytes =
        discarded_offload_bytes(model, machine.num_nodes, machine.local_world_size, settings);
    option.fits_disk = option.disk_bytes_with(options.model_bytes) <= options.free_disk_bytes;
    option.fits_memory = option.memory_bytes <= options.memory_bytes;
    option.time = predict_step(walks,
                               step_inputs(memory, request_.mean_row_tokens, micro_batch_rows(request_.batch),
                                           micro_batches_of_rank(request_.batch),
                                           planner.micro_batches_per_pass(), request_.num_threads),
                               op_costs_);
    return option;
  }

  const RunSpec& spec_;
  const FitRequest& request_;
  std::map<Quantization, std::unique_ptr<Planned>> planned_;
  RowLengths data_;
  std::map<int64_t, int64_t> largest_pass_;
  RatedCosts op_costs_;
};

std::vector<size_t> options_where(const FitOptions& options, auto condition) {
  std::vector<size_t> out;
  for (size_t i = 0; i < options.all.size(); ++i) {
    if (condition(options.all[i])) out.push_back(i);
  }
  return out;
}

}  // namespace

std::vector<size_t> FitOptions::worth_having() const {
  return needed(all, options_where(*this, [](const FitOption& option) { return option.fits(); }));
}

std::vector<size_t> FitOptions::out_of_reach() const {
  std::vector<size_t> found =
      needed(all, options_where(*this, [&](const FitOption& option) {
               return !option.fits() && (!best || (option.changes <= all[*best].changes &&
                                                   option.time.step_s() < all[*best].time.step_s()));
             }));
  if (!best) std::ranges::stable_sort(found, {}, [&](size_t i) { return all[i].memory_bytes; });
  return found;
}

FitRequest fit_request(const RunSpec& spec, const ModelConfig& config, const ClusterShape& cluster,
                       int64_t num_threads, const JobSize& job, int64_t free_disk_bytes) {
  FitRequest request(spec);
  request.config = config;
  request.batch = spec.batch_options(cluster.world_size());
  request.data = uniform_rows(job.max_row_tokens, micro_batch_rows(request.batch));
  request.mean_row_tokens = job.mean_row_tokens;
  request.machine =
      planned_machine(cluster.num_nodes, cluster.local_world_size, num_threads, cluster.node_memory_bytes);
  request.num_threads = num_threads;
  request.ops = cluster.ops;
  request.rates = cluster.rates.value();
  request.rates.network_gbps = cluster.network_gbps;
  request.free_disk_bytes = free_disk_bytes;
  return request;
}

FitOptions fit_options(const FitRequest& request) { return OptionPlanner(request.spec, request).run(); }

std::optional<FitOptions> lora_fit_options(const FitRequest& request) {
  if (request.spec.lora.finetuning_type == FinetuningType::kLora ||
      request.spec.sources.given.contains("finetuning_type"))
    return {};
  if (request.spec.placement.optimizer_in_backward) return {};
  const RunSpec spec = with_adapters(request.spec);
  FitRequest lora = request;
  try {
    lora.config.lora = lora_config_of(spec.lora, spec.model, lora.config);
    return OptionPlanner(spec, lora).run();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadConfig) throw;
    return std::nullopt;
  }
}

}  // namespace tessera
