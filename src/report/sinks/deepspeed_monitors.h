// The output of DeepSpeed's monitors: Train/Samples/NAME over the rows trained on so far, for every step, as
// CSV files or into event files of TensorBoard (deepspeed/monitor/, Train/Samples in
// deepspeed/runtime/engine.py).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "report/files/append_file.h"
#include "report/observer.h"

namespace tessera {

// train_loss, lr, grad_norm, tokens_per_second, mfu of every step, eval_loss (eval_NAME_loss) of every
// evaluation. DeepSpeed has the first two; it files train_loss under the rows before the step, which here are
// those after it, too.
class DeepSpeedMonitor : public TrainObserver {
 public:
  // `name` is Train/Samples/...
  using Write = std::function<void(const std::string& name, double value, int64_t num_samples)>;
  // DeepSpeed counts `rows_per_step` for every step, although the last one of an epoch may have fewer.
  DeepSpeedMonitor(int64_t rows_per_step, Write write)
      : rows_per_step_(rows_per_step), write_(std::move(write)) {}
  void on_step(const StepMetrics& metrics) override;
  void on_log(const LogEntry& entry) override;

 private:
  void write(const std::string& name, double value, int64_t step) {
    write_(fmt::format("Train/Samples/{}", name), value, step * rows_per_step_);
  }

  int64_t rows_per_step_;
  Write write_;
};

// One file per name, Train_Samples_lr.csv: the header "step,lr", then rows. As in DeepSpeed, a new run adds
// to the files of an earlier one, with another header.
class CsvFolder {
 public:
  // `resumed_samples`: a resumed run continues after the rows up to this one, and drops those after it.
  // Error(kIoError) if the folder cannot be created.
  CsvFolder(std::filesystem::path folder, std::optional<int64_t> resumed_samples);
  // A file that cannot be written is a warning.
  void write(const std::string& name, double value, int64_t num_samples);

 private:
  std::unique_ptr<AppendFile> open(const std::string& name) const;

  std::filesystem::path folder_;
  std::optional<int64_t> resumed_samples_;
  std::map<std::string, std::unique_ptr<AppendFile>> files_;  // nullptr: cannot be opened
};

}  // namespace tessera
