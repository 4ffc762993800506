// metrics.jsonl: one JSON object per optimizer step.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

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
class MetricsFile {
 public:
  // Replaces the file except for an earlier run's lines up to step `keep`: everything after them, including a
  // torn line, is cut off. kIoError if it cannot be opened.
  explicit MetricsFile(const std::filesystem::path& path, int64_t keep = 0);
  void write(const StepMetrics& metrics);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  bool warned_ = false;
};

}  // namespace tessera
