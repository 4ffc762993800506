#include "train/output/metrics_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
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
  if (metrics.mfu) line["mfu"] = *metrics.mfu;
  if (metrics.peak) line["peak_tflops"] = metrics.peak->tflops;
  if (metrics.network) {
    line["network_sent_bytes"] = metrics.network->sent_bytes;
    line["network_received_bytes"] = metrics.network->received_bytes;
    line["network_time_s"] = metrics.network->time_s;
    line["network_hidden"] = metrics.network->hidden;
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
    line["checkpoint_write_s"] = metrics.checkpoint->write_s;
    line["checkpoint_stall_s"] = metrics.checkpoint->stall_s;
  }
  if (metrics.peer_snapshot_s) line["peer_snapshot_s"] = *metrics.peer_snapshot_s;
  return line.dump();
}

namespace {

// Total size of the leading complete lines that belong to steps up to `last_step`.
int64_t bytes_until(const std::filesystem::path& path, int64_t last_step) {
  std::ifstream in(path, std::ios::binary);
  int64_t bytes = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const nlohmann::json metrics = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!metrics.is_object() || !metrics.contains("step") || !metrics["step"].is_number_integer() ||
        metrics["step"] > last_step) {
      break;
    }
    bytes += std::ssize(line) + 1;
  }
  return bytes;
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t keep) : path_(path) {
  const int64_t kept_bytes = keep > 0 ? bytes_until(path, keep) : 0;
  file_.reset(std::fopen(path.c_str(), "ae"));
  if (file_ && ftruncate(fileno(file_.get()), kept_bytes) != 0) file_.reset();
  if (!file_) fail_errno(ExitCode::kIoError, errno, fmt::format("cannot write {}", path.string()));
}

void MetricsFile::on_step(const StepMetrics& metrics) {
  const std::string line = metrics_line(metrics) + "\n";
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size();
  if (written && std::fflush(file_.get()) == 0) return;
  if (!warned_) log_warning("cannot write {}: {}; training continues", path_.string(), std::strerror(errno));
  warned_ = true;
  std::clearerr(file_.get());
}

void MemoryFile::on_memory(const MemoryPlan& plan, const MeasuredMemory& measured) {
  try {
    write_text_file(path_, memory_json(plan, measured));
  } catch (const Error& error) {
    log_warning("{}; training continues", error.what());
  }
}

}  // namespace tessera
