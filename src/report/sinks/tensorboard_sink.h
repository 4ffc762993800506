// Event files for TensorBoard, with the tags of Hugging Face's TensorBoardCallback.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "report/observer.h"
#include "report/sinks/event_file.h"

namespace tessera {

// Writes entries of log_history as train/NAME and eval/NAME over steps; training entries with throughput/NAME
// and times/NAME of their step. Texts: args and model_config.
class TensorBoardSink : public TrainObserver {
 public:
  // `arguments` and `model_config` are JSON. Error(kIoError) if the folder cannot be written.
  TensorBoardSink(const std::filesystem::path& folder, std::optional<int64_t> resumed_step,
                  const std::string& arguments, const std::string& model_config);
  void on_step(const StepMetrics& metrics) override {
    last_step_ = metrics;
    last_step_.ranks = {};
  }
  void on_log(const LogEntry& entry) override;

 private:
  void add_throughput();

  EventFile file_;
  StepMetrics last_step_;
};

// Where event files go: logging_dir, or TENSORBOARD_LOGGING_DIR, or OUTPUT/runs/DATE_HOST as in Hugging
// Face's Trainer; of a resumed run the newest such folder, if there is one.
std::filesystem::path tensorboard_folder(const std::string& logging_dir, const std::string& variable,
                                         const std::filesystem::path& output_dir, bool is_resumed);

}  // namespace tessera
