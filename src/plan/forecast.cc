#include "plan/forecast.h"

#include <algorithm>

#include "base/error.h"
#include "model/flops.h"
#include "ops/cpu_ops.h"
#include "platform/memory_info.h"
#include "train/passes.h"
#include "train/zero_arguments.h"

namespace tessera {
namespace {

constexpr int64_t kDefaultMaxLength = 1024;

int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

// Limits for batch_size rows of row_tokens at once, as the trainer would reserve.
ActivationLimits limits_for(const TrainingArguments& args, int64_t batch_size, int64_t row_tokens,
                            bool gradient_checkpointing) {
  ActivationLimits limits;
  limits.max_tokens = batch_size * row_tokens;
  limits.max_sequence_length = row_tokens;
  limits.gradient_checkpointing = gradient_checkpointing;
  limits.pack_weights = args.pack_weights == "always";
  return limits;
}

int64_t merged_micro_batches(const TrainingArguments& args, const Model& model, int64_t num_rows,
                             int64_t row_tokens) {
  if (args.merge_micro_batches == "never") return 1;
  if (args.merge_micro_batches == "always") return args.gradient_accumulation_steps;
  const ActivationLimits micro_batch = limits_for(args, num_rows, row_tokens, args.gradient_checkpointing);
  return micro_batches_per_pass(model, micro_batch, args.gradient_accumulation_steps);
}

// Model operations of a step on one node, in 10^12.
double tflop_per_step(const ModelConfig& config, int64_t row_tokens, int64_t num_rows) {
  const std::vector<int32_t> one_row = {0, static_cast<int32_t>(row_tokens)};
  return model_flops(config, one_row, row_tokens - 1).forward_backward() * static_cast<double>(num_rows) /
         1e12;
}

class Forecaster {
 public:
  Forecaster(const TrainingArguments& args, const ModelConfig& config, const ClusterShape& cluster,
             ThreadPool& pool)
      : args_(args),
        cluster_(cluster),
        ops_(make_cpu_ops(pool)),
        model_(config, args.training_dtype(), *ops_) {
    row_tokens_ = args.max_length.value_or(std::min(kDefaultMaxLength, config.max_position_embeddings));
    batch_ = args.batch_options(cluster.world_size());
    merged_ = merged_micro_batches(args, model_, micro_batch_rows(batch_), row_tokens_);
    free_bytes_ = cluster.node_memory_bytes - cluster.local_world_size * resident_bytes();
  }

  RunForecast run(int64_t num_threads) {
    RunForecast forecast;
    forecast.cluster = cluster_;
    forecast.num_parameters = model_.layout().num_parameters();
    forecast.dtype = model_.dtype();
    forecast.num_threads = num_threads;
    forecast.gradient_checkpointing = args_.gradient_checkpointing;
    forecast.row_tokens = row_tokens_;
    const int64_t step_rows = global_batch_rows(batch_);
    forecast.tokens_per_step = step_rows * row_tokens_;
    // For the node with the most rows.
    forecast.tflop_per_step =
        tflop_per_step(model_.config(), row_tokens_,
                       cluster_.local_world_size * divide_up(step_rows, cluster_.world_size()));
    forecast.compute_s = compute_seconds(forecast.tflop_per_step);

    MemoryRequest request = make_request();
    forecast.tokens_per_pass = request.limits.max_tokens;
    forecast.schedule_is_auto = args_.gather_schedule == "auto";
    choose_what_fits(&request);
    forecast.zero = request.zero;
    forecast.memory = plan_memory(model_, with_snapshot(request));
    const MemoryChoices choices = {
        micro_batch_rows(batch_), merged_,
        [this](int64_t batch_size, int64_t max_row_length, bool gradient_checkpointing) {
          return limits_for(args_, batch_size, std::min(max_row_length, row_tokens_), gradient_checkpointing);
        },
        args_.global_batch_size.has_value()};
    forecast.refusal = memory_refusal(model_, request, free_bytes_, memory_alternatives(request, choices));
    if (cluster_.num_nodes > 1) {
      for (const GatherSchedule schedule : {GatherSchedule::kPerStep, GatherSchedule::kPerLayer}) {
        if (schedule == GatherSchedule::kPerLayer && request.zero.stage < 3) continue;
        request.zero.schedule = schedule;
        choose_packing(&request);
        forecast.schedules.push_back(forecast_schedule(request, forecast.compute_s));
      }
    }
    return forecast;
  }

 private:
  MemoryRequest make_request() const {
    MemoryRequest request;
    request.limits =
        limits_for(args_, micro_batch_rows(batch_) * merged_, row_tokens_, args_.gradient_checkpointing);
    request.baseline_bytes = resident_bytes();
    request.num_nodes = cluster_.num_nodes;
    request.local_world_size = cluster_.local_world_size;
    request.export_bytes = export_bytes(model_.layout(), args_.export_dtype(), request);
    request.connections = static_cast<int>(args_.connections);
    request.peer_snapshots = args_.peer_snapshot_steps > 0;
    request.zero =
        zero_settings_of(args_, model_.config(), divide_up(args_.gradient_accumulation_steps, merged_));
    return request;
  }

  bool fits(const MemoryRequest& request) const { return needed_bytes(model_, request) <= free_bytes_; }

  // As the trainer does: the schedule first, then packed weights if there is room.
  void choose_what_fits(MemoryRequest* request) const {
    if (may_gather_per_layer(args_, cluster_.num_nodes) && !fits(*request)) {
      request->zero.schedule = GatherSchedule::kPerLayer;
    }
    check_packed_weights(model_, *request);
    choose_packing(request);
  }

  void choose_packing(MemoryRequest* request) const {
    if (args_.pack_weights != "auto") return;
    request->limits.pack_weights = can_keep_packed_weights(model_, *request);
    request->limits.pack_weights = request->limits.pack_weights && fits(*request);
  }

  // Adds what background checkpoints may use of the remaining memory.
  MemoryRequest with_snapshot(MemoryRequest request) const {
    if (args_.saves_in_background()) {
      request.snapshot_bytes = snapshot_bytes(model_, request, free_bytes_);
    }
    return request;
  }

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
    ScheduleForecast out;
    out.schedule = request.zero.schedule;
    out.node_bytes = plan_memory(model_, with_snapshot(request)).node_bytes();
    out.fits = fits(request);
    const ZeroLayout layout = zero_layout(model_.layout(), cluster_.num_nodes, cluster_.local_world_size);
    const ZeroSettings zero = zero_settings(model_, request);
    out.wire = wire_bytes_per_step(layout, zero, 0);
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
  Model model_;
  BatchPlanOptions batch_;
  int64_t row_tokens_ = 0;
  int64_t merged_ = 1;  // micro-batches per pass
  int64_t free_bytes_ = 0;
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
