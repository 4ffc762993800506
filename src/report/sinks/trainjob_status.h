// Reports to Kubeflow Trainer how far a run is, as status.trainerStatus of its TrainJob: `kubectl get
// trainjob -o yaml` shows it. Trainer from v2.2 on has the server, if its feature TrainJobStatus is on, and
// then sets the variables below in every pod (kubeflow/trainer,
// pkg/runtime/framework/plugins/trainjobstatus).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/ranks/world.h"
#include "report/observer.h"

namespace tessera {

struct TrainJobServer {
  std::string url;         // KUBEFLOW_TRAINER_SERVER_URL, https://
  std::string ca_file;     // KUBEFLOW_TRAINER_SERVER_CA_CERT
  std::string token_file;  // KUBEFLOW_TRAINER_SERVER_TOKEN; the kubelet replaces its content within the hour
  // Between requests, as Kubeflow's own client keeps it; after failures doubled up to `longest_pause`.
  std::chrono::milliseconds interval{5'000};
  std::chrono::milliseconds longest_pause{120'000};
  std::chrono::seconds request_limit{5};  // for the lookup of the name, and again for the request
};

// nullopt without a URL, and with a warning where the variables cannot be used.
std::optional<TrainJobServer> trainjob_server(const Environment& environment);

// A thread of its own sends the newest state: training never waits for it, and states that are superseded
// before the server takes them are dropped. The first failure is one warning. For rank 0.
class TrainJobStatus : public TrainObserver {
 public:
  explicit TrainJobStatus(TrainJobServer server);
  // Sends the last state, if it has not been: takes at most twice a request's time.
  ~TrainJobStatus() override { end(); }

  void on_plan(const RunPlan& plan) override;
  void on_resume(const std::filesystem::path& folder, int64_t step, const std::string& differences) override;
  void on_resume_from_memory(const std::string& nodes, int64_t step, const std::string& differences) override;
  void on_step(const StepMetrics& metrics) override;
  void on_log(const LogEntry& entry) override;
  void on_finish(const TrainSummary& summary) override;

 private:
  struct State {
    int64_t step = 0;
    int64_t max_steps = 0;
    std::optional<double> seconds_left;
    std::map<std::string, double> metrics;

    // The request's body: kubeflow/trainer, pkg/apis/trainer/v1alpha1, UpdateTrainJobStatusRequest.
    std::string json() const;
  };

  template <typename Change>
  void update(const Change& change);
  void end();
  void work();
  std::string send(const std::string& body) const;

  const TrainJobServer server_;
  std::mutex mutex_;
  std::condition_variable wake_;
  State state_;
  bool is_new_ = false;  // state_ has not been sent
  bool is_ending_ = false;
  std::thread thread_;  // declared last: it uses the other members
};

}  // namespace tessera
