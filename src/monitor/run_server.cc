#include "monitor/run_server.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "comm/ranks/proof.h"
#include "platform/system.h"
#include "settings/derived.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// From the environment; fit for a cookie and an address line without escapes.
std::string token_from_environment() {
  constexpr size_t kShortest = 16, kLongest = 256;
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  const std::string token = process_environment()(kMetricsTokenVariable).value_or("");
  if (!token.empty() && (token.size() < kShortest || token.size() > kLongest ||
                         token.find_first_not_of(kAllowed) != token.npos)) {
    fail(ExitCode::kBadConfig,
         "{}: expected {} to {} letters, digits and -._~, found {} characters: choose another token, such as "
         "that of 'openssl rand -hex 16'",
         kMetricsTokenVariable, kShortest, kLongest, token.size());
  }
  return token;
}

WebServerOptions web_options(const ReportingSpec& reporting, int64_t port) {
  WebServerOptions options;
  options.host = reporting.metrics_host;
  options.port = static_cast<int>(port);
  options.token = token_from_environment();
  return options;
}

// Readable by its owner alone, since it may have a token, and never half written.
void write_private_file(const fs::path& path, const std::string& text) {
  const fs::path temporary = path.native() + ".new";
  std::error_code error;
  fs::remove(temporary, error);
  const UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool is_written = file && ::write(file.get(), text.data(), text.size()) == std::ssize(text);
  if (is_written) fs::rename(temporary, path, error);
  if (!is_written || error) {
    log_warning("cannot write {}: {}", path.string(), is_written ? error.message() : std::strerror(errno));
  }
}

}  // namespace

std::unique_ptr<RunServer> RunServer::open(const RunSpec& spec, Communicator& comm,
                                           const std::string& version) {
  const std::optional<int64_t> port = serving_port(spec.reporting);
  if (!port || comm.world().local_rank != 0) return nullptr;
  return std::unique_ptr<RunServer>(new RunServer(spec, comm, version, web_options(spec.reporting, *port)));
}

RunServer::RunServer(const RunSpec& spec, Communicator& comm, const std::string& version,
                     const WebServerOptions& options)
    : output_dir_(spec.output_dir),
      comm_(comm),
      health_(comm.position(), spec.reporting.health_timeout_s),
      run_metrics_(comm.world().world_size),
      node_metrics_(version, spec.output_dir, comm, health_),
      web_(options) {
  add(health_);
  if (comm.world().rank == 0) add(run_metrics_);
  // Open like Prometheus's own exporters, unless there is a token for them.
  web_.add("/metrics", options.token.empty() ? WebServer::Access::kOpen : WebServer::Access::kToken,
           [this](const WebRequest& request) { return metrics_response(request); });
  web_.add("/healthz", WebServer::Access::kOpen, [this](const WebRequest&) {
    const RunHealth::Report report = health_.report();
    return text_response(report.is_healthy() ? 200 : 503, report.json(), "application/json");
  });
  web_.add("/readyz", WebServer::Access::kOpen, [this](const WebRequest&) {
    const RunHealth::Report report = health_.report();
    return text_response(report.has_step ? 200 : 503, report.json(), "application/json");
  });
  if (comm.world().rank == 0 && spec.reporting.reports_to(ReportTo::kDashboard)) {
    dashboard_ = std::make_unique<Dashboard>(spec, web_);
    add(*dashboard_);
  }
  web_.start();
  if (dashboard_) {
    log_info("page: {}/{}", web_.url(),
             web_.token().empty() ? "" : "?token=TOKEN with the token in endpoint.json in output_dir");
  }
  log_info("metrics: {}/metrics{}", web_.url(),
           options.token.empty() ? "" : fmt::format(", with the token of {}", kMetricsTokenVariable));
}

RunServer::~RunServer() {
  std::error_code ignored;
  if (!endpoint_file_.empty()) fs::remove(endpoint_file_, ignored);
}

void RunServer::on_output_folder() {
  const int node = comm_.world().node_rank;
  nlohmann::ordered_json endpoint = {{"url", web_.url()}, {"host", host_name()}, {"pid", getpid()}};
  if (!web_.token().empty()) endpoint["token"] = web_.token();
  std::error_code ignored;  // only the file matters
  fs::create_directories(output_dir_, ignored);
  endpoint_file_ =
      fs::path(output_dir_) / (node == 0 ? "endpoint.json" : fmt::format("endpoint-node-{}.json", node));
  write_private_file(endpoint_file_, endpoint.dump(2) + "\n");
  ObserverList::on_output_folder();
}

WebResponse RunServer::metrics_response(const WebRequest& request) const {
  const bool is_open_metrics = request.accept.find("application/openmetrics-text") != request.accept.npos;
  Exposition exposition(is_open_metrics);
  if (comm_.world().rank == 0) run_metrics_.write(&exposition);
  node_metrics_.write(&exposition);
  return text_response(200, std::move(exposition).finish(), Exposition::content_type(is_open_metrics));
}

}  // namespace tessera
