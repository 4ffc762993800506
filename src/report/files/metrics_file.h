// Files that report on a run: metrics.jsonl, one JSON object per optimizer step, and memory.json.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "report/files/line_file.h"
#include "report/observer.h"

namespace tessera {

// A line without its newline: step, epoch, loss, grad_norm, learning_rate, num_tokens, num_target_tokens,
// tokens_per_second, step_time_s, tflops, time_*_s (StepTimes), mfu and peak_tflops when the peak was
// measured, with several ranks rank_compute_s (an array), with several nodes network_sent_bytes,
// network_received_bytes, network_time_s, network_hidden, and in the first step after a checkpoint was
// completed checkpoint_step, checkpoint_bytes, checkpoint_shared_bytes, checkpoint_write_s,
// checkpoint_stall_s; numbers in full precision.
std::string metrics_line(const StepMetrics& metrics);

class MetricsFile : public TrainObserver {
 public:
  // See LineFile.
  explicit MetricsFile(const std::filesystem::path& path, int64_t keep = 0) : file_(path, keep) {}
  void on_step(const StepMetrics& metrics) override;

 private:
  LineFile file_;
};

// memory.json: the memory plan of a run beside the measurements. A file that cannot be written is a warning.
class MemoryFile : public TrainObserver {
 public:
  explicit MemoryFile(std::filesystem::path path) : path_(std::move(path)) {}
  void on_memory(const MemoryPlan& plan, const MeasuredMemory& measured) override;

 private:
  std::filesystem::path path_;
};

}  // namespace tessera
