// The HTTP server of a training process.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "monitor/http/web_server.h"
#include "monitor/metrics/node_metrics.h"
#include "monitor/metrics/run_health.h"
#include "monitor/metrics/run_metrics.h"
#include "monitor/page/dashboard.h"
#include "report/observer.h"
#include "settings/run_settings.h"

namespace tessera {

//   /metrics   for Prometheus: on rank 0 of the run and its node, on the first rank of another node of that
//   /healthz   200 while the run makes progress, 503 if it has stalled; JSON with step and phase
//   /readyz    200 once a step is finished in this process
//   /          with report_to dashboard, on rank 0 of the run: its page (page/dashboard.h)
// A server with a token requires it for everything except /healthz and /readyz.
class RunServer final : public ObserverList {
 public:
  // Listens from now on, so that loading is seen as well. nullptr if the arguments ask for nothing, or on a
  // rank that is not the first of its node. Error(kBadConfig) if it cannot listen. `comm` must outlive
  // this.
  static std::unique_ptr<RunServer> open(const RunSpec& spec, Communicator& comm, const std::string& version);
  ~RunServer() override;

  bool is_for_every_rank() const override { return true; }
  // Writes endpoint.json, on node N endpoint-node-N.json, with "url", "token" if there is one, "host" and
  // "pid"; it is removed at the end.
  void on_output_folder() override;

  const WebServer& web() const { return web_; }

 private:
  RunServer(const RunSpec& spec, Communicator& comm, const std::string& version,
            const WebServerOptions& options);
  WebResponse metrics_response(const WebRequest& request) const;

  const std::string output_dir_;
  Communicator& comm_;
  std::filesystem::path endpoint_file_;  // "" until it is written
  RunHealth health_;
  RunMetrics run_metrics_;
  NodeMetrics node_metrics_;
  WebServer web_;  // its thread uses the others
  std::unique_ptr<Dashboard> dashboard_;
};

}  // namespace tessera
