#include "monitor/metrics/metric_table.h"

#include <fmt/format.h>

#include <array>
#include <iterator>

namespace tessera {
namespace {

constexpr MetricType kGauge = MetricType::kGauge;
constexpr MetricType kCounter = MetricType::kCounter;
constexpr MetricType kHistogram = MetricType::kHistogram;

// In the order of Metric.
constexpr std::array kTable = std::to_array<MetricInfo>({
    {"tessera_train_loss", kGauge, "", "Loss of the last step, as in metrics.jsonl."},
    {"tessera_train_grad_norm", kGauge, "", "Gradient norm of the last step, before clipping."},
    {"tessera_train_learning_rate", kGauge, "", "Learning rate of the last step."},
    {"tessera_train_tokens_per_second", kGauge, "", "Tokens per second of the last step, over all ranks."},
    {"tessera_train_step", kGauge, "", "Steps that are finished, those before a resume included."},
    {"tessera_train_max_steps", kGauge, "", "Steps of the whole run."},
    {"tessera_train_epoch", kGauge, "", "Epochs after the last step."},
    {"tessera_eta_seconds", kGauge, "",
     "Expected time until the run ends, evaluations and checkpoints included."},
    {"tessera_eval_loss", kGauge, "set",
     "Loss of the last evaluation; set is the name of the evaluation set, where eval_dataset gives names."},
    {"tessera_tokens_total", kCounter, "",
     "Tokens trained on by this process and the other ranks of its start."},
    {"tessera_step_seconds", kHistogram, "phase",
     "Time of steps: phase=all is the whole step, the other phases add up to it."},
    {"tessera_skipped_steps_total", kCounter, "",
     "Steps whose update was skipped, for a loss spike or values that are not finite."},
    {"tessera_loss_spikes_total", kCounter, "", "Steps whose loss or gradient norm stood out."},
    {"tessera_nonfinite_steps_total", kCounter, "",
     "Steps whose loss or gradient norm was not finite and whose update was skipped."},
    {"tessera_mfu_ratio", kGauge, "",
     "Model FLOPs utilization of the last step: FLOPs over the arithmetic peak."},
    {"tessera_flops", kGauge, "",
     "Floating-point operations per second of the last step that the model needs."},
    {"tessera_peak_flops", kGauge, "", "Arithmetic peak of all ranks, the best measured so far."},
    {"tessera_clock_hertz", kGauge, "",
     "Clock of the cores during the measurement of that peak; only where the cycles of its instructions are "
     "known."},
    {"tessera_memory_planned_bytes", kGauge, "kind", "What the plan of the run lets a node take."},
    {"tessera_rank_lag_seconds", kGauge, "rank",
     "Time that a rank computed in the last step beyond the median of the ranks."},
    {"tessera_rank_compute_seconds", kGauge, "rank",
     "Time that a rank computed in the last step, without waiting."},
    {"tessera_rank_wait_seconds", kGauge, "rank",
     "Time that a rank waited for the others and the network during the passes of the last step."},
    {"tessera_checkpoint_age_seconds", kGauge, "",
     "Time since the last complete checkpoint, or since the start if there is none."},
    {"tessera_checkpoint_seconds", kGauge, "phase",
     "Time of the last checkpoint: phase=write from its start to its completion, phase=stall what training "
     "waited for."},
    {"tessera_checkpoint_bytes", kGauge, "", "Size of the last checkpoint."},
    {"tessera_checkpoints_total", kCounter, "", "Checkpoints completed."},
    {"tessera_checkpoint_failures_total", kCounter, "", "Checkpoints that could not be written."},
    {"tessera_offload_bytes_total", kCounter, "direction",
     "What a rank has moved between memory and its files in offload_dir during steps; only where it is "
     "used."},
    {"tessera_offload_wait_seconds_total", kCounter, "kind",
     "Time that steps waited for these files: kind=state of the optimizer, weights of layers, inputs of "
     "layers."},
    {"tessera_log_warnings_total", kCounter, "", "Warnings logged."},
    {"tessera_build_info", kGauge, "version, host, node, ranks", "Always 1; the labels say what runs where."},
    {"tessera_start_time_seconds", kGauge, "", "When this process began to serve metrics, in Unix time."},
    {"tessera_restarts_total", kCounter, "",
     "How often the ranks were restarted: by the agents of tessera launch in this pod, and before that by "
     "JobSet with all pods."},
    {"tessera_last_step_age_seconds", kGauge, "",
     "Time since a step was finished; where none was, since the start."},
    {"tessera_progress_age_seconds", kGauge, "",
     "Time since the run last made progress: a step, or part of loading, an evaluation or a checkpoint."},
    {"tessera_progress_limit_seconds", kGauge, "",
     "The age of the last progress above which /healthz answers 503."},
    {"tessera_stop_requested", kGauge, "",
     "1 once SIGTERM, SIGINT or SIGHUP has asked this process to stop, else 0."},
    {"tessera_memory_bytes", kGauge, "kind",
     "Memory: kind=used and kind=limit of the control group or the machine, kind=resident and kind=peak of "
     "this process."},
    {"tessera_collectives_total", kCounter, "op, scope", "Collective operations of this rank."},
    {"tessera_collective_seconds_total", kCounter, "op, scope",
     "Their time: scope=network while an operation ran, mostly beside computing, and scope=background "
     "likewise of what sync_every exchanges; scope=node and, of ranks that share rows, scope=context while "
     "this "
     "rank waited."},
    {"tessera_collective_bytes_total", kCounter, "op, scope", "Their data, the whole buffers of all ranks."},
    {"tessera_network_bytes_total", kCounter, "direction",
     "Payload that this rank sent to and received from other nodes."},
    {"tessera_cpu_throttled_seconds_total", kCounter, "",
     "Time for which the CPU quota of the control group has stopped the threads."},
    {"tessera_cpu_frequency_hertz", kGauge, "",
     "Clock of the machine's processors now, their mean; only where the kernel knows it."},
    {"tessera_numa_free_bytes", kGauge, "numa_node", "Free memory of a NUMA node of the machine."},
    {"tessera_numa_miss_pages_total", kCounter, "numa_node",
     "Pages taken from a NUMA node because the wanted one was full, by any process since the machine "
     "started."},
    {"tessera_tcp_segments_sent_total", kCounter, "",
     "TCP segments sent, not counting those sent again, by any process of this network namespace."},
    {"tessera_tcp_retransmits_total", kCounter, "",
     "TCP segments sent again, by any process of this network namespace."},
    {"tessera_rdma_counter_total", kCounter, "device, port, counter",
     "Counters of EFA, InfiniBand and RoCE adapters under the kernel's names and in its units, where there "
     "are any."},
    {"tessera_gpu_memory_used_bytes", kGauge, "gpu, name",
     "Memory of an NVIDIA card that is in use, by any process; gpu is its index in nvidia-smi."},
    {"tessera_gpu_memory_total_bytes", kGauge, "gpu, name", "Memory of an NVIDIA card."},
    {"tessera_gpu_utilization_ratio", kGauge, "gpu, name",
     "Share of the last second or less in which an NVIDIA card ran a kernel, of any process."},
    {"tessera_gpu_sm_clock_hertz", kGauge, "gpu, name", "Clock of an NVIDIA card's multiprocessors now."},
    {"tessera_gpu_power_watts", kGauge, "gpu, name", "What an NVIDIA card draws now."},
    {"tessera_gpu_temperature_celsius", kGauge, "gpu, name", "Temperature of an NVIDIA card."},
    {"tessera_gpu_throttled", kGauge, "gpu, name, reason",
     "1 if the reason keeps an NVIDIA card's clocks below their maximum now, else 0. Faults are "
     "hardware_slowdown, software_thermal, hardware_thermal and hardware_power_brake."},
    {"tessera_disk_read_bytes_total", kCounter, "", "What this process has read from storage."},
    {"tessera_disk_written_bytes_total", kCounter, "", "What this process has written to storage."},
    {"tessera_disk_free_bytes", kGauge, "", "Free space of the file system of output_dir."},
    {"tessera_disk_size_bytes", kGauge, "", "Size of the file system of output_dir."},
});
static_assert(kTable.size() == static_cast<size_t>(Metric::kDiskSizeBytes) + 1);

}  // namespace

const MetricInfo& info_of(Metric metric) { return kTable[static_cast<size_t>(metric)]; }

std::span<const MetricInfo> all_metrics() { return kTable; }

std::string metrics_markdown() {
  std::string text = "| metric | type | labels | meaning |\n|---|---|---|---|\n";
  for (const MetricInfo& info : kTable) {
    fmt::format_to(std::back_inserter(text), "| `{}` | {} | {} | {} |\n", info.name,
                   metric_type_name(info.type), info.labels, info.help);
  }
  return text;
}

}  // namespace tessera
