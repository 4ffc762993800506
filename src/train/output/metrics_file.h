// Files that report on a run: metrics.jsonl, one JSON object per optimizer step, and memory.json.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "train/observer.h"

namespace tessera {

// A line without its newline: step, epoch, loss, grad_norm, learning_rate, num_tokens, num_target_tokens,
// tokens_per_second, step_time_s, tflops, mfu and peak_tflops when the peak was measured, with several nodes
// network_sent_bytes, network_received_bytes, network_time_s, network_hidden, and in the first step after a
// checkpoint was completed checkpoint_step, checkpoint_bytes, checkpoint_write_s, checkpoint_stall_s; numbers
// in full precision.
std::string metrics_line(const StepMetrics& metrics);

// Lines reach the file as they are written. A full disk does not end the run: it is reported once as a
// warning.
class MetricsFile : public TrainObserver {
 public:
  // Replaces the file except for an earlier run's lines up to step `keep`: everything after them, including a
  // torn line, is cut off. kIoError if it cannot be opened.
  explicit MetricsFile(const std::filesystem::path& path, int64_t keep = 0);
  void on_step(const StepMetrics& metrics) override;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  bool warned_ = false;
};

// memory.json: the memory plan of a run beside what was measured. A file that cannot be written is a warning.
class MemoryFile : public TrainObserver {
 public:
  explicit MemoryFile(std::filesystem::path path) : path_(std::move(path)) {}
  void on_memory(const MemoryPlan& plan, const MeasuredMemory& measured) override;

 private:
  std::filesystem::path path_;
};

}  // namespace tessera
