// Reports to MLflow: arguments and model configuration as parameters, the entries of log_history as metrics
// under the names of Hugging Face's MLflowCallback, those of training with tokens_per_second and mfu of their
// step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "report/observer.h"
#include "report/sinks/mlflow_store.h"

namespace tessera {

// A separate thread talks to the store, which may be slow or down: training never waits for it. Values wait
// in a queue of bounded length; values that do not fit are dropped and counted in a warning at the end.
class MlflowSink : public TrainObserver {
 public:
  // Once the run has begun, `id_file` tells its id and `tracking_uri`, by which a resumed run finds it.
  MlflowSink(std::unique_ptr<MlflowStore> store, MlflowRun run, std::filesystem::path id_file,
             std::string tracking_uri);
  // A run that has not finished has failed. Waits for what is queued, at most about 20 s, as on_finish()
  // does.
  ~MlflowSink() override;

  void on_step(const StepMetrics& metrics) override;
  void on_log(const LogEntry& entry) override;
  void on_finish(const TrainSummary& summary) override;

 private:
  struct Ending {
    MlflowStatus status;
    std::chrono::steady_clock::time_point deadline;
  };

  void end(MlflowStatus status);
  void work();
  void begin();

  // Used by the thread alone once it runs.
  std::unique_ptr<MlflowStore> store_;
  MlflowRun run_;
  std::filesystem::path id_file_;
  std::string tracking_uri_;
  // Those of the last step.
  double tokens_per_second_ = 0;
  std::optional<double> mfu_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<MlflowMetric> queue_;
  int64_t num_dropped_ = 0;
  std::optional<Ending> ending_;
  std::thread thread_;
};

}  // namespace tessera
