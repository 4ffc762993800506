#include "forecast/forecast.h"

#include <algorithm>

#include "base/divide_up.h"
#include "base/error.h"
#include "forecast/time/planned_step.h"
#include "forecast/time/step_walk.h"
#include "plan/planned_model.h"
#include "settings/derived.h"

namespace tessera {
namespace {

// Model operations of a step on one node, in 10^12.
double tflop_per_step(const TrainableModel& model, int64_t row_tokens, int64_t num_rows) {
  const PackedBatch row = random_batch({.rows = 1, .row_tokens = row_tokens}, /*vocab_size=*/1,
                                       model.config().encoder_decoder.has_value());
  return model.flops(row.cu_seqlens, row.num_sources, row.num_targets).forward_backward() *
         static_cast<double>(num_rows) / 1e12;
}

class Forecaster {
 public:
  Forecaster(const RunSpec& spec, const ModelConfig& config, const ClusterShape& cluster, int64_t num_threads,
             const std::optional<JobSize>& job)
      : spec_(spec),
        cluster_(cluster),
        planned_(config, spec.precision.dtype, num_threads, cluster.ops, spec.sharding.context_parallel_size),
        model_(*planned_.model),
        job_(job),
        row_tokens_(job ? job->max_row_tokens : spec.data.row_limit(config)),
        mean_row_tokens_(job ? job->mean_row_tokens : row_tokens_),
        step_(spec, model_, cluster.num_nodes, cluster.local_world_size, num_threads, row_tokens_),
        planner_(step_.planner()),
        machine_(step_.machine(cluster.node_memory_bytes)),
        walks_(config, spec.precision.dtype) {
    machine_.has_disk = machine_.has_disk && cluster.has_disk;
    if (!cluster.rates) return;
    MachineRates rates = *cluster.rates;
    rates.network_gbps = cluster.network_gbps;
    of_rates_.emplace(rates);
    op_costs_ = cluster.op_costs != nullptr ? cluster.op_costs : &*of_rates_;
  }

  RunForecast run(int64_t num_threads) {
    RunForecast forecast;
    forecast.cluster = cluster_;
    forecast.num_parameters = model_.layout().num_parameters();
    forecast.num_frozen = frozen_parameters(model_);
    forecast.dtype = model_.dtype();
    forecast.num_threads = num_threads;
    forecast.gradient_checkpointing = spec_.placement.gradient_checkpointing;
    forecast.row_tokens = row_tokens_;
    forecast.context_size = spec_.sharding.context_parallel_size;
    const int64_t step_rows = step_.step_rows();
    forecast.tokens_per_step = step_rows * mean_row_tokens_;
    forecast.job = job_;
    // For the node with the most rows.
    const int64_t rows_of_team = divide_up(step_rows, num_row_ranks(spec_.sharding, cluster_.world_size()));
    forecast.tflop_per_step = tflop_per_step(model_, mean_row_tokens_, rows_of_team) *
                              cluster_.local_world_size /
                              static_cast<double>(spec_.sharding.context_parallel_size);

    const MemoryRequest request = planner_.choose_memory(machine_);
    RunPlan plan;
    planner_.fill_memory(request, machine_, &plan);
    forecast.tokens_per_pass = plan.limits.max_tokens;
    forecast.schedule_is_auto = spec_.sharding.gather_schedule == GatherChoice::kAuto;
    forecast.zero = request.zero;
    forecast.memory = plan.memory;
    forecast.free_bytes = model_.device().own_memory() ? machine_.free_bytes : cluster_.node_memory_bytes;
    forecast.refusal = planner_.refusal(request, machine_);
    forecast.time = time_of(request);
    forecast.disk = plan_disk(
        model_.layout(), {spec_.precision.export_dtype(), saved_tensors(request.zero, cluster_.num_nodes)},
        /*count=*/{});
    forecast.disk.offload_bytes =
        offload_bytes(model_, cluster_.num_nodes, cluster_.local_world_size, plan.zero) +
        cluster_.local_world_size * planner_.offloaded_input_bytes();
    forecast.disk.discarded_bytes =
        discarded_offload_bytes(model_, cluster_.num_nodes, cluster_.local_world_size, plan.zero);
    if (cluster_.num_nodes > 1) {
      for (const GatherSchedule schedule : {GatherSchedule::kPerStep, GatherSchedule::kPerLayer}) {
        if (schedule == GatherSchedule::kPerLayer && (request.zero.stage < 3 || request.zero.outer)) continue;
        forecast.schedules.push_back(forecast_schedule(planner_.choose_memory(machine_, schedule)));
      }
      if (may_train_apart(request.zero)) {
        ZeroSettings seldom = planner_.choose_memory(machine_, GatherSchedule::kPerStep).zero;
        seldom.outer = OuterSettings{.sync_every = kForecastSyncEvery};
        seldom.quantized_weights = false;
        seldom.quantized_gradients.reset();
        forecast.seldom = forecast_schedule(planner_.choose_memory(machine_, seldom));
        forecast.seldom->int4_gradients.reset();  // one row is enough
      }
    }
    return forecast;
  }

 private:
  std::optional<StepTime> time_of(const MemoryRequest& request) {
    if (op_costs_ == nullptr) return std::nullopt;
    return predict_step(walks_, step_.inputs(request, mean_row_tokens_), *op_costs_);
  }

  // Whether sync_every may be added (check_outer()).
  bool may_train_apart(const ZeroSettings& zero) const {
    return !zero.outer && spec_.sharding.context_parallel_size == 1 && is_elementwise(zero.state_tensors) &&
           !zero.optimizer_in_backward && !zero.state_folder && !zero.weight_folder && !zero.frozen_folder &&
           !model_.device().own_memory();
  }

  ScheduleForecast forecast_schedule(const MemoryRequest& request) {
    RunPlan plan;
    planner_.fill_memory(request, machine_, &plan);
    ScheduleForecast out;
    static_cast<TrafficForecast&>(out) = forecast_traffic(request, plan.wire);
    out.schedule = plan.zero.schedule;
    out.divides_experts = plan.zero.divides_experts;
    out.node_bytes = plan.memory.node_bytes();
    out.fits = needed_bytes(model_, request) <= machine_.free_bytes;
    MemoryRequest quantized = request;
    if (request.zero.stage > 0 && model_.dtype() == DType::kBF16 && !request.zero.quantized_weights &&
        !request.zero.outer) {
      quantized.zero.quantized_weights = true;
      planner_.fill_memory(quantized, machine_, &plan);
      out.int8_weights = forecast_traffic(quantized, plan.wire);
    }
    if (!request.zero.quantized_gradients && !request.zero.divides_experts) {
      quantized.zero.quantized_gradients = GradientCode::kInt4;
      // The errors take memory that the plan may have spent on something else.
      quantized = planner_.choose_memory(machine_, quantized.zero);
      planner_.fill_memory(quantized, machine_, &plan);
      out.int4_gradients = forecast_traffic(quantized, plan.wire);
      out.int4_node_bytes = plan.memory.node_bytes();
      out.int4_fits = needed_bytes(model_, quantized) <= machine_.free_bytes;
    }
    return out;
  }

  TrafficForecast forecast_traffic(const MemoryRequest& request, const WireBytes& wire) {
    const double bytes_per_s = cluster_.network_gbps / 8 * 1e9;
    return {wire, static_cast<double>(std::max(wire.sent(), wire.received())) / bytes_per_s,
            time_of(request)};
  }

  const RunSpec& spec_;
  const ClusterShape& cluster_;
  PlannedModel planned_;
  const TrainableModel& model_;
  const std::optional<JobSize>& job_;
  int64_t row_tokens_;  // of the longest row
  int64_t mean_row_tokens_;
  PlannedStep step_;
  const RunPlanner& planner_;
  MachineResources machine_;
  StepWalks walks_;
  std::optional<RatedCosts> of_rates_;
  OpCosts* op_costs_ = nullptr;
};

}  // namespace

MachineRates rates_of_peak(double node_tflops, int64_t num_cores, double mfu) {
  constexpr double kNoLimit = 1e12;
  MachineRates rates;
  rates.num_cores = num_cores;
  rates.core_bf16_tflops = rates.core_f32_tflops = node_tflops / static_cast<double>(num_cores);
  rates.forward_efficiency = rates.backward_input_efficiency = rates.backward_weight_efficiency = mfu;
  rates.attention_efficiency = rates.attention_backward_efficiency = mfu;
  rates.half_tokens = rates.half_width = rates.weight_half_width = rates.attention_half_row = 0;
  rates.memory_gb_per_s = rates.core_gb_per_s = rates.core_coded_giga_elements_per_s = kNoLimit;
  rates.product_call_s = rates.call_s = rates.node_latency_s = rates.network_latency_s = rates.step_s = 0;
  rates.network_efficiency = 1;
  return rates;
}

RunForecast forecast_run(const RunSpec& spec, const ModelConfig& config, const ClusterShape& cluster,
                         int64_t num_threads, const std::optional<JobSize>& job) {
  TESSERA_CHECK(cluster.num_nodes > 0 && cluster.local_world_size > 0 && cluster.network_gbps > 0,
                "{} nodes of {} ranks, {} Gbit/s", cluster.num_nodes, cluster.local_world_size,
                cluster.network_gbps);
  return Forecaster(spec, config, cluster, num_threads, job).run(num_threads);
}

}  // namespace tessera
