#include "report/sinks/trainjob_status.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/socket/host_lookup.h"
#include "hub/http.h"
#include "io/file.h"
#include "platform/background_thread.h"
#include "report/sinks/log_values.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr int64_t kMaxTokenBytes = 64 << 10;
constexpr double kMaxSeconds = 2147483647;  // int32 in the API
// Limits of the API: metrics, and bytes of a name or a value.
constexpr size_t kMaxMetrics = 256;
constexpr size_t kMaxMetricBytes = 64;

// The time in RFC 3339, in seconds, which metav1.Time reads.
std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

std::string read_token(const std::string& path) {
  std::string token = read_text_file(path, kMaxTokenBytes);
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  const bool is_plain =
      std::ranges::all_of(token, [](unsigned char c) { return c > 0x20 && c < 0x7F; });  // fits a header
  if (token.empty() || !is_plain)
    fail(ExitCode::kBadData, "{}: expected a token, found '{}'", path, printable(token, 20));
  return token;
}

// "host:port:address,..." for libcurl, whose own lookup takes no deadline.
std::string resolved(const std::string& url, std::chrono::steady_clock::time_point limit) {
  const std::string origin = origin_of(url);
  std::string host = origin.substr(origin.find("://") + 3);
  std::string port = "443";
  const size_t colon = host.rfind(':');
  if (colon != std::string::npos && host.find(']', colon) == std::string::npos) {
    port = host.substr(colon + 1);
    host.resize(colon);
  }
  if (host.starts_with('[') || is_numeric_address(host)) return "";
  return fmt::format("{}:{}:{}", host, port, fmt::join(HostLookup::system().addresses_of(host, limit), ","));
}

// The server's reason for a refusal: metav1.Status.
std::string reason_in(const std::string& body) {
  const json status = json::parse(body, nullptr, /*allow_exceptions=*/false);
  const bool has_message = status.is_object() && status.contains("message") && status["message"].is_string();
  const std::string text = has_message ? status["message"].get<std::string>() : body;
  return text.empty() ? "" : ": " + printable(text, 200);
}

}  // namespace

std::optional<TrainJobServer> trainjob_server(const Environment& environment) {
  TrainJobServer server;
  server.url = environment("KUBEFLOW_TRAINER_SERVER_URL").value_or("");
  server.ca_file = environment("KUBEFLOW_TRAINER_SERVER_CA_CERT").value_or("");
  server.token_file = environment("KUBEFLOW_TRAINER_SERVER_TOKEN").value_or("");
  if (server.url.empty()) return std::nullopt;
  if (!server.url.starts_with("https://")) {
    log_warning("KUBEFLOW_TRAINER_SERVER_URL: expected https://, found '{}': no status is sent",
                printable(server.url));
    return std::nullopt;
  }
  if (server.ca_file.empty() || server.token_file.empty()) {
    log_warning(
        "KUBEFLOW_TRAINER_SERVER_URL is set, but KUBEFLOW_TRAINER_SERVER_{} is not: no status is sent",
        server.token_file.empty() ? "TOKEN" : "CA_CERT");
    return std::nullopt;
  }
  return server;
}

std::string TrainJobStatus::State::json() const {
  nlohmann::json status = {{"lastUpdatedTime", time_now()}};
  if (max_steps > 0) status["progressPercentage"] = std::clamp<int64_t>(100 * step / max_steps, 0, 100);
  if (seconds_left)
    status["estimatedRemainingSeconds"] = std::llround(std::clamp(*seconds_left, 0.0, kMaxSeconds));
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [name, value] : metrics) {
    if (list.size() == kMaxMetrics || name.empty() || name.size() > kMaxMetricBytes) continue;
    list.push_back({{"name", name}, {"value", fmt::format("{:.9g}", value)}});
  }
  if (!list.empty()) status["metrics"] = std::move(list);
  return nlohmann::json{{"trainerStatus", std::move(status)}}.dump();
}

TrainJobStatus::TrainJobStatus(TrainJobServer server)
    : server_(std::move(server)), thread_(start_background_thread([this] { work(); })) {}

template <typename Change>
void TrainJobStatus::update(const Change& change) {
  const std::lock_guard lock(mutex_);
  change(state_);
  is_new_ = true;
  wake_.notify_one();
}

void TrainJobStatus::on_plan(const RunPlan& plan) {
  update([&](State& state) { state.max_steps = plan.max_steps; });
}

void TrainJobStatus::on_resume(const std::filesystem::path&, int64_t step, const std::string&) {
  update([&](State& state) { state.step = step; });
}

void TrainJobStatus::on_resume_from_memory(const std::string&, int64_t step, const std::string&) {
  on_resume({}, step, {});
}

void TrainJobStatus::on_step(const StepMetrics& metrics) {
  update([&](State& state) {
    state.step = metrics.step;
    state.seconds_left = metrics.eta_s;
    state.metrics["loss"] = metrics.loss;
    state.metrics["grad_norm"] = metrics.grad_norm;
    state.metrics["learning_rate"] = metrics.learning_rate;
    state.metrics["tokens_per_second"] = metrics.tokens_per_second;
    state.metrics["epoch"] = metrics.epoch;
    state.metrics["step"] = static_cast<double>(metrics.step);
    if (metrics.mfu) state.metrics["mfu"] = *metrics.mfu;
  });
}

// Evaluations and the end of the run: the values of a step are on_step()'s.
void TrainJobStatus::on_log(const LogEntry& entry) {
  if (is_training_entry(entry)) return;
  update([&](State& state) {
    for (const auto& [name, value] : entry.values) state.metrics[name] = number_of(value);
  });
}

void TrainJobStatus::on_finish(const TrainSummary& summary) {
  update([&](State& state) {
    state.step = summary.num_steps;
    state.seconds_left.reset();  // unknown if a signal ended the run
    if (summary.stop_signal != 0) return;
    state.seconds_left = 0;
    state.max_steps = state.step;  // early stopping also ends a run
  });
  end();
}

void TrainJobStatus::end() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    wake_.notify_one();
  }
  thread_.join();
}

void TrainJobStatus::work() {
  bool has_warned = false;
  std::chrono::milliseconds pause = server_.interval;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return is_new_ || is_ending_; });
    if (!is_new_) return;
    const bool is_last = is_ending_;
    const std::string body = state_.json();
    is_new_ = false;
    lock.unlock();
    const std::string problem = send(body);
    if (!problem.empty() && !std::exchange(has_warned, true))
      log_warning("the status of the TrainJob could not be sent: {}; training continues", problem);
    lock.lock();
    if (is_last) return;
    if (!problem.empty()) is_new_ = true;
    pause = problem.empty() ? server_.interval : std::min(2 * pause, server_.longest_pause);
    wake_.wait_for(lock, pause, [this] { return is_ending_; });
  }
}

// Returns what went wrong; "" = nothing. A connection for each request, because certificates are replaced
// while a run lasts, and the CA's with them.
std::string TrainJobStatus::send(const std::string& body) const {
  try {
    HttpRequest request;
    request.url = server_.url;
    request.token = read_token(server_.token_file);
    request.posted_json = body;
    request.limit = server_.request_limit;
    request.resolved = resolved(server_.url, HostLookup::Clock::now() + server_.request_limit);
    HubSettings settings;
    settings.ca_file = server_.ca_file;
    settings.timeout = server_.request_limit;
    const HttpAnswer answer = HttpConnection(settings).perform(request);
    if (answer.status / 100 == 2) return "";
    return fmt::format("{}: status {}{}", origin_of(server_.url), answer.status, reason_in(answer.body));
  } catch (const HttpFailure& failure) {
    return failure.cause();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace tessera
