#include "plan/forecast.h"

#include <algorithm>

#include "base/divide_up.h"
#include "base/error.h"
#include "model/families.h"
#include "ops/cpu_ops.h"
#include "plan/run_planner.h"
#include "platform/memory_info.h"

namespace tessera {
namespace {

// Model operations of a step on one node, in 10^12.
double tflop_per_step(const TrainableModel& model, int64_t row_tokens, int64_t num_rows) {
  const std::vector<int32_t> one_row = {0, static_cast<int32_t>(row_tokens)};
  return model.flops(one_row, row_tokens - 1).forward_backward() * static_cast<double>(num_rows) / 1e12;
}

class Forecaster {
 public:
  Forecaster(const TrainingArguments& args, const ModelConfig& config, const ClusterShape& cluster,
             ThreadPool& pool)
      : args_(args),
        cluster_(cluster),
        ops_(make_cpu_ops(pool)),
        model_(make_model(config, args.training_dtype(), *ops_)),
        batch_(args.batch_options(cluster.world_size())),
        row_tokens_(args.row_limit(config.max_position_embeddings)),
        planner_(args, *model_, batch_, uniform_rows(row_tokens_, micro_batch_rows(batch_))) {
    machine_.num_nodes = cluster.num_nodes;
    machine_.local_world_size = cluster.local_world_size;
    machine_.baseline_bytes = resident_bytes();
    machine_.free_bytes = cluster.node_memory_bytes - cluster.local_world_size * machine_.baseline_bytes;
  }

  RunForecast run(int64_t num_threads) {
    RunForecast forecast;
    forecast.cluster = cluster_;
    forecast.num_parameters = model_->layout().num_parameters();
    forecast.dtype = model_->dtype();
    forecast.num_threads = num_threads;
    forecast.gradient_checkpointing = args_.gradient_checkpointing;
    forecast.row_tokens = row_tokens_;
    const int64_t step_rows = global_batch_rows(batch_);
    forecast.tokens_per_step = step_rows * row_tokens_;
    // For the node with the most rows.
    forecast.tflop_per_step = tflop_per_step(
        *model_, row_tokens_, cluster_.local_world_size * divide_up(step_rows, cluster_.world_size()));
    forecast.compute_s = compute_seconds(forecast.tflop_per_step);

    const MemoryRequest request = planner_.choose_memory(machine_);
    RunPlan plan;
    planner_.fill_memory(request, machine_, &plan);
    forecast.tokens_per_pass = plan.limits.max_tokens;
    forecast.schedule_is_auto = args_.gather_schedule == "auto";
    forecast.zero = request.zero;
    forecast.memory = plan.memory;
    forecast.refusal = planner_.refusal(request, machine_);
    forecast.disk =
        plan_disk(forecast.num_parameters, {args_.export_dtype(), request.zero.state_tensors}, /*count=*/{});
    if (cluster_.num_nodes > 1) {
      for (const GatherSchedule schedule : {GatherSchedule::kPerStep, GatherSchedule::kPerLayer}) {
        if (schedule == GatherSchedule::kPerLayer && request.zero.stage < 3) continue;
        forecast.schedules.push_back(
            forecast_schedule(planner_.choose_memory(machine_, schedule), forecast.compute_s));
      }
    }
    return forecast;
  }

 private:
  // Checkpointing computes the forward pass, a third of the operations, twice.
  std::optional<double> compute_seconds(double tflop) const {
    if (!cluster_.node_tflops) return std::nullopt;
    const double computed = args_.gradient_checkpointing ? tflop * 4 / 3 : tflop;
    return computed / (*cluster_.node_tflops * cluster_.mfu);
  }

  double network_seconds(int64_t sent, int64_t received) const {
    return static_cast<double>(std::max(sent, received)) / (cluster_.network_gbps / 8 * 1e9);
  }

  // Under per_step the network is used only in the first forward pass and the last backward pass.
  ScheduleForecast forecast_schedule(const MemoryRequest& request, std::optional<double> compute_s) const {
    RunPlan plan;
    planner_.fill_memory(request, machine_, &plan);
    const ZeroLayout layout = zero_layout(model_->layout(), cluster_.num_nodes, cluster_.local_world_size);
    const ZeroSettings& zero = plan.zero;
    ScheduleForecast out;
    out.schedule = zero.schedule;
    out.node_bytes = plan.memory.node_bytes();
    out.fits = needed_bytes(*model_, request) <= machine_.free_bytes;
    out.wire = plan.wire;
    out.network_s = network_seconds(out.wire.sent(), out.wire.received());
    if (!compute_s) return out;

    const double num_passes = static_cast<double>(zero.passes_per_step);
    const bool in_every_pass = shards_weights(layout, zero);
    const double num_uses = in_every_pass ? num_passes : 1;
    const double gather_s = network_seconds(out.wire.sent_gather, out.wire.received_gather) / num_uses;
    const double reduce_s = network_seconds(out.wire.sent_reduce, out.wire.received_reduce) / num_uses;
    const double pass_s = *compute_s / num_passes;
    const double forward_s = pass_s * (args_.gradient_checkpointing ? 1.0 / 4 : 1.0 / 3);
    const double forward_gather_s = in_every_pass ? gather_s / 2 : gather_s;
    const double exposed_forward_s = std::max(0.0, forward_gather_s - forward_s);
    const double exposed_backward_s =
        std::max(0.0, gather_s - forward_gather_s + reduce_s - (pass_s - forward_s));
    out.exposed_s = num_uses * (exposed_forward_s + exposed_backward_s);
    out.step_s = *compute_s + *out.exposed_s;
    return out;
  }

  const TrainingArguments& args_;
  const ClusterShape& cluster_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<TrainableModel> model_;
  BatchPlanOptions batch_;
  int64_t row_tokens_;
  RunPlanner planner_;
  MachineFacts machine_;
};

}  // namespace

RunForecast forecast_run(const TrainingArguments& args, const ModelConfig& config,
                         const ClusterShape& cluster, ThreadPool& pool) {
  TESSERA_CHECK(cluster.num_nodes > 0 && cluster.local_world_size > 0 && cluster.network_gbps > 0 &&
                    cluster.mfu > 0 && cluster.node_tflops.value_or(1) > 0,
                "{} nodes of {} ranks, {} Gbit/s, {} TFLOPS, MFU {}", cluster.num_nodes,
                cluster.local_world_size, cluster.network_gbps, cluster.node_tflops.value_or(1), cluster.mfu);
  return Forecaster(args, config, cluster, pool).run(pool.num_threads());
}

}  // namespace tessera
