#include "report/files/metrics_file.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "io/file.h"

namespace tessera {

std::string metrics_line(const StepMetrics& metrics) {
  nlohmann::ordered_json line = {{"step", metrics.step},
                                 {"epoch", metrics.epoch},
                                 {"loss", metrics.loss},
                                 {"grad_norm", metrics.grad_norm},
                                 {"learning_rate", metrics.learning_rate},
                                 {"num_tokens", metrics.num_tokens},
                                 {"num_target_tokens", metrics.num_target_tokens},
                                 {"tokens_per_second", metrics.tokens_per_second},
                                 {"step_time_s", metrics.step_time_s},
                                 {"tflops", metrics.tflops}};
  for (const auto& [name, seconds] : kStepTimes) {
    if (seconds != &StepTimes::disk_s || metrics.disk)
      line[fmt::format("time_{}", name)] = metrics.times.*seconds;
  }
  if (metrics.eta_s) line["eta_s"] = *metrics.eta_s;
  if (metrics.mfu) line["mfu"] = *metrics.mfu;
  if (metrics.peak) line["peak_tflops"] = metrics.peak->tflops;
  if (metrics.network) {
    line["network_sent_bytes"] = metrics.network->sent_bytes;
    line["network_received_bytes"] = metrics.network->received_bytes;
    line["network_time_s"] = metrics.network->time_s;
    line["network_hidden"] = metrics.network->hidden;
  }
  if (metrics.disk) {
    line["disk_read_bytes"] = metrics.disk->read_bytes;
    line["disk_written_bytes"] = metrics.disk->written_bytes;
    line["disk_state_wait_s"] = metrics.disk->state_wait_s;
    line["disk_weights_wait_s"] = metrics.disk->weights_wait_s;
    line["disk_inputs_wait_s"] = metrics.disk->inputs_wait_s;
  }
  if (metrics.ranks.size() > 1) {
    nlohmann::ordered_json seconds = nlohmann::ordered_json::array();
    for (const RankStep& rank : metrics.ranks) seconds.push_back(rank.compute_s);
    line["rank_compute_s"] = std::move(seconds);
  }
  if (metrics.slowest_rank) {
    line["slowest_rank"] = metrics.slowest_rank->rank;
    line["slowest_rank_times_median"] = metrics.slowest_rank->times_median;
  }
  if (metrics.replay_check_s) line["replay_check_s"] = *metrics.replay_check_s;
  if (metrics.skipped) line["skipped"] = true;
  if (metrics.checkpoint) {
    line["checkpoint_step"] = metrics.checkpoint->step;
    line["checkpoint_bytes"] = metrics.checkpoint->bytes;
    line["checkpoint_shared_bytes"] = metrics.checkpoint->shared_bytes;
    line["checkpoint_write_s"] = metrics.checkpoint->write_s;
    line["checkpoint_stall_s"] = metrics.checkpoint->stall_s;
  }
  if (metrics.peer_snapshot_s) line["peer_snapshot_s"] = *metrics.peer_snapshot_s;
  return line.dump();
}

void MetricsFile::on_step(const StepMetrics& metrics) { file_.write(metrics_line(metrics)); }

void MemoryFile::on_memory(const MemoryPlan& plan, const MeasuredMemory& measured) {
  try {
    write_text_file(path_, memory_json(plan, measured));
  } catch (const Error& error) {
    log_warning("{}; training continues", error.what());
  }
}

}  // namespace tessera
