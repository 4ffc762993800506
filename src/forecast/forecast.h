// Forecasts a run before any of it exists: memory per rank and node, bytes between nodes, step time. Needs
// only the model's shape and the settings, neither weights nor data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "devices/make_ops.h"
#include "forecast/text/job_size.h"
#include "forecast/time/machine_rates.h"
#include "forecast/time/step_time.h"
#include "formats/huggingface/model_config.h"
#include "ops/cpu_ops.h"
#include "plan/disk_plan.h"
#include "plan/memory_plan.h"
#include "plan/planned_model.h"
#include "settings/run_settings.h"

namespace tessera {

// The machines.
struct ClusterShape {
  int num_nodes = 1;
  int local_world_size = 1;
  int64_t node_memory_bytes = 0;
  bool memory_is_of_this_machine = false;  // not given by the user
  bool has_disk = true;                    // nodes have one for state and weights that leave memory
  double network_gbps = 25;                // per node and direction, 10^9 bits per second
  std::optional<MachineRates> rates;       // of a node, except for its network; nullopt: no times
  OpCosts* op_costs = nullptr;             // measured ones, instead of those that follow from `rates`
  bool rates_are_of_this_machine = false;
  // The device that computes. If it has memory of its own, the run must fit into what is free there now, and
  // node_memory_bytes is the host's.
  OpsFactory ops = make_cpu_ops;

  int world_size() const { return num_nodes * local_world_size; }
};

// A node with a known arithmetic peak and the share of it that a model's operations reach; nothing else takes
// time, except a disk.
MachineRates rates_of_peak(double node_tflops, int64_t num_cores, double mfu);

struct TrafficForecast {
  WireBytes wire;                // per optimizer step and node
  double network_s = 0;          // for `wire` at full speed, sending and receiving at once
  std::optional<StepTime> time;  // with ClusterShape::rates
};

// Forecasts a run with one gather schedule.
struct ScheduleForecast : TrafficForecast {
  GatherSchedule schedule = GatherSchedule::kPerStep;
  bool divides_experts = false;
  int64_t node_bytes = 0;  // memory
  bool fits = false;
  // The forecast with zero_quantized_weights, if that is possible and not already set.
  std::optional<TrafficForecast> int8_weights;
  // In addition with zero_quantized_gradients int4, unless gradients are quantized; with a node's memory in
  // that case.
  std::optional<TrafficForecast> int4_gradients;
  int64_t int4_node_bytes = 0;
  bool int4_fits = false;
};

inline constexpr int64_t kForecastSyncEvery = 50;

struct RunForecast {
  ClusterShape cluster;
  int64_t num_parameters = 0;  // trained ones
  int64_t num_frozen = 0;
  DType dtype = DType::kBF16;
  int64_t num_threads = 1;  // per rank; some buffers depend on it
  bool gradient_checkpointing = false;
  int64_t row_tokens = 0;       // max_length
  int64_t tokens_per_step = 0;  // over all ranks
  int64_t tokens_per_pass = 0;  // per rank
  ZeroSettings zero;
  bool schedule_is_auto = true;
  MemoryPlan memory;
  int64_t free_bytes = 0;        // of a node, or of the device
  std::string refusal;           // why it does not fit and what would; empty if it fits
  DiskPlan disk;                 // the sizes of the model and of a checkpoint
  int64_t context_size = 1;      // ranks that share rows
  double tflop_per_step = 0;     // per node, model operations
  std::optional<StepTime> time;  // of a step; with ClusterShape::rates
  std::optional<JobSize> job;
  std::vector<ScheduleForecast> schedules;  // the stage's options; empty on one node
  // The forecast with sync_every kForecastSyncEvery, on several nodes whose optimizer allows it.
  std::optional<ScheduleForecast> seldom;
};

// `spec` must be resolved. Without a job every row is assumed to have max_length tokens (1024 without one, as
// in training). A rank has num_threads threads, which determine some buffers.
RunForecast forecast_run(const RunSpec& spec, const ModelConfig& config, const ClusterShape& cluster,
                         int64_t num_threads, const std::optional<JobSize>& job = std::nullopt);

// Tables of at most 80 columns.
std::string forecast_text(const RunForecast& forecast);
// The forecast as a JSON object, sizes in bytes, times in seconds; indent 2, trailing newline.
std::string forecast_json(const RunForecast& forecast);

}  // namespace tessera
