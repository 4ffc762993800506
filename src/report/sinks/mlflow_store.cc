#include "report/sinks/mlflow_store.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "hub/http.h"
#include "io/absolute_path.h"
#include "io/file.h"
#include "report/files/append_file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kDefaultExperiment = "0";
constexpr const char* kDefaultName = "Default";
constexpr size_t kParamsPerRequest = 100;

// JSON has no numbers that are not finite; MLflow reads these words.
json json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

class MlflowServer : public MlflowStore {
 public:
  MlflowServer(std::string uri, const Environment& environment)
      : uri_(std::move(uri)),
        token_(environment("MLFLOW_TRACKING_TOKEN").value_or("")),
        settings_(settings_of(environment)),
        connection_(settings_) {
    while (uri_.ends_with('/')) uri_.pop_back();
    const std::string user = environment("MLFLOW_TRACKING_USERNAME").value_or("");
    if (!user.empty()) credentials_ = user + ":" + environment("MLFLOW_TRACKING_PASSWORD").value_or("");
  }

  std::string begin(const MlflowRun& run) override {
    if (!run.id.empty()) {
      id_ = run.id;
      post("runs/update", {{"run_id", id_}, {"status", "RUNNING"}});
    } else if (id_.empty()) {
      const json tags = {{{"key", "mlflow.runName"}, {"value", run.name}},
                         {{"key", "mlflow.source.name"}, {"value", "tessera train"}},
                         {{"key", "mlflow.source.type"}, {"value", "LOCAL"}}};
      id_ = text_at(post("runs/create", {{"experiment_id", experiment_id(run.experiment)},
                                         {"run_name", run.name},
                                         {"start_time", unix_milliseconds()},
                                         {"tags", tags}}),
                    "/run/info/run_id");
    }
    json params = json::array();
    for (const auto& [key, value] : run.params) {
      params.push_back({{"key", key}, {"value", value}});
      if (params.size() < kParamsPerRequest && key != run.params.rbegin()->first) continue;
      post("runs/log-batch", {{"run_id", id_}, {"params", params}});
      params.clear();
    }
    return id_;
  }

  void log(std::span<const MlflowMetric> metrics) override {
    json list = json::array();
    for (const MlflowMetric& metric : metrics) {
      list.push_back({{"key", metric.key},
                      {"value", json_number(metric.value)},
                      {"timestamp", metric.time_ms},
                      {"step", metric.step}});
    }
    post("runs/log-batch", {{"run_id", id_}, {"metrics", list}});
  }

  void set_status(MlflowStatus status, int64_t end_time_ms) override {
    const char* name = status == MlflowStatus::kFinished ? "FINISHED"
                       : status == MlflowStatus::kKilled ? "KILLED"
                                                         : "FAILED";
    post("runs/update", {{"run_id", id_}, {"status", name}, {"end_time", end_time_ms}});
  }

 private:
  static HubSettings settings_of(const Environment& environment) {
    HubSettings settings;
    settings.timeout = std::chrono::seconds(5);
    for (const char* name : {"MLFLOW_TRACKING_SERVER_CERT_PATH", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}) {
      if (settings.ca_file.empty()) settings.ca_file = environment(name).value_or("");
    }
    return settings;
  }

  std::string experiment_id(const std::string& name) {
    if (name.empty()) return kDefaultExperiment;
    const HttpAnswer found =
        request("experiments/get-by-name?experiment_name=" + escaped_query(name), std::nullopt);
    if (found.status == 404) return text_at(post("experiments/create", {{"name", name}}), "/experiment_id");
    return text_at(parsed(found), "/experiment/experiment_id");
  }

  static std::string escaped_query(const std::string& text) {
    std::string escaped = escaped_path(text);
    for (size_t at = 0; (at = escaped.find('/', at)) != std::string::npos;) escaped.replace(at, 1, "%2F");
    return escaped;
  }

  HttpAnswer request(const std::string& method, const std::optional<std::string>& body) {
    constexpr std::chrono::seconds kLimit{10};
    try {
      return connection_.perform({.url = uri_ + "/api/2.0/mlflow/" + method,
                                  .is_head = false,
                                  .token = token_,
                                  .range = "",
                                  .basic_credentials = credentials_,
                                  .posted_json = body,
                                  .limit = kLimit});
    } catch (const HttpFailure& failure) {
      fail(ExitCode::kTryAgain, "MLflow at {}", failure.cause());
    }
  }

  json post(const std::string& method, const json& body) { return parsed(request(method, body.dump())); }

  json parsed(const HttpAnswer& answer) const {
    json out = json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
    if (answer.status == 200 && out.is_object()) return out;
    const bool is_transient = answer.status >= 500 || answer.status == 429;
    const std::string message = out.is_object() && out.contains("message") && out["message"].is_string()
                                    ? out["message"].get<std::string>()
                                    : answer.body;
    fail(is_transient ? ExitCode::kTryAgain : ExitCode::kIoError, "MLflow at {}: status {}: {}",
         origin_of(uri_), answer.status, printable(message, 200));
  }

  std::string text_at(const json& answer, const char* pointer) const {
    const json found = answer.value(json::json_pointer(pointer), json());
    if (found.is_string()) return found.get<std::string>();
    fail(ExitCode::kIoError, "MLflow at {}: expected {} in the answer, found {}", origin_of(uri_), pointer,
         printable(answer.dump(), 100));
  }

  std::string uri_;
  std::string token_;
  std::string credentials_;
  HubSettings settings_;
  HttpConnection connection_;
  std::string id_;
};

std::string random_hex() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

class MlflowFolder : public MlflowStore {
 public:
  explicit MlflowFolder(const fs::path& root) : root_(absolute_path(root).lexically_normal()) {}

  std::string begin(const MlflowRun& run) override {
    create_folder(root_ / ".trash");
    if (run.id.empty()) {
      new_run(run, experiment_id(run.experiment));
    } else {
      run_ = folder_of_run(run.id);
      set_status(MlflowStatus::kRunning, 0);
    }
    for (const auto& [key, value] : run.params) add_text(run_ / "params" / key, value, 0);
    return run_.filename().string();
  }

  void log(std::span<const MlflowMetric> metrics) override {
    for (const MlflowMetric& metric : metrics)
      add_text(run_ / "metrics" / metric.key,
               fmt::format("{} {} {}\n", metric.time_ms, metric.value, metric.step));
  }

  void set_status(MlflowStatus status, int64_t end_time_ms) override {
    std::istringstream meta(read_text_file(run_ / "meta.yaml"));
    std::string text;
    for (std::string line; std::getline(meta, line);) {
      if (line.starts_with("status:")) line = fmt::format("status: {}", static_cast<int>(status));
      if (line.starts_with("end_time:"))
        line = end_time_ms == 0 ? "end_time: null" : fmt::format("end_time: {}", end_time_ms);
      text += line + "\n";
    }
    write_text_file(run_ / "meta.yaml", text);
  }

 private:
  // Adds to the first `keep_bytes` of a file. A run has more than a hundred, so they are not synced one by
  // one.
  static void add_text(const fs::path& path, const std::string& text,
                       int64_t keep_bytes = std::numeric_limits<int64_t>::max()) {
    const int error = AppendFile(path, keep_bytes).try_append(text);
    if (error != 0) fail_write(path, "write", error);
  }

  // A text in YAML.
  static std::string quoted(const std::string& text) { return json(text).dump(); }

  std::string experiment_id(const std::string& name) {
    const std::string wanted = name.empty() ? kDefaultName : name;
    const std::string spellings[] = {"name: " + wanted, "name: '" + wanted + "'", "name: " + quoted(wanted)};
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(root_)) {
      const fs::path meta = entry.path() / "meta.yaml";
      if (!fs::is_regular_file(meta, ignored)) continue;
      std::istringstream lines(read_text_file(meta));
      for (std::string line; std::getline(lines, line);) {
        if (std::ranges::find(spellings, line) != std::end(spellings))
          return entry.path().filename().string();
      }
    }
    // MLflow does the same: 18 digits that are unlikely to be in use.
    std::random_device random;
    const std::string id =
        wanted == kDefaultName
            ? kDefaultExperiment
            : fmt::format("{:09}{:09}", 100'000'000 + random() % 900'000'000, random() % 1'000'000'000);
    create_folder(root_ / id);
    write_text_file(root_ / id / "meta.yaml",
                    fmt::format("artifact_location: {}\ncreation_time: {}\nexperiment_id: {}\n"
                                "last_update_time: {}\nlifecycle_stage: active\nname: {}\n",
                                quoted("file://" + (root_ / id).string()), unix_milliseconds(), quoted(id),
                                unix_milliseconds(), quoted(wanted)));
    return id;
  }

  void new_run(const MlflowRun& run, const std::string& experiment) {
    const std::string id = random_hex();
    run_ = root_ / experiment / id;
    for (const char* name : {"metrics", "params", "tags", "artifacts"}) create_folder(run_ / name);
    write_text_file(
        run_ / "meta.yaml",
        fmt::format("artifact_uri: {}\nend_time: null\nentry_point_name: ''\nexperiment_id: {}\n"
                    "lifecycle_stage: active\nrun_id: {}\nrun_name: {}\nrun_uuid: {}\nsource_name: ''\n"
                    "source_type: 4\nsource_version: ''\nstart_time: {}\nstatus: 1\ntags: []\nuser_id: ''\n",
                    quoted("file://" + (run_ / "artifacts").string()), quoted(experiment), quoted(id),
                    quoted(run.name), quoted(id), unix_milliseconds()));
    add_text(run_ / "tags" / "mlflow.runName", run.name, 0);
    add_text(run_ / "tags" / "mlflow.source.name", "tessera train", 0);
    add_text(run_ / "tags" / "mlflow.source.type", "LOCAL", 0);
  }

  fs::path folder_of_run(const std::string& id) const {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(root_)) {
      if (fs::is_regular_file(entry.path() / id / "meta.yaml", ignored)) return entry.path() / id;
    }
    fail(ExitCode::kIoError, "MLflow in {}: found no run {}", root_.string(), printable(id));
  }

  fs::path root_;
  fs::path run_;
};

}  // namespace

std::unique_ptr<MlflowStore> open_mlflow_store(const Environment& environment) {
  std::string uri = environment("MLFLOW_TRACKING_URI").value_or("");
  if (uri.empty()) uri = "mlruns";
  if (uri.starts_with("http://") || uri.starts_with("https://"))
    return std::make_unique<MlflowServer>(uri, environment);
  if (uri.starts_with("file:")) uri = uri.substr(uri.starts_with("file://") ? 7 : 5);
  if (uri.find(':') < uri.find('/') || uri == "databricks") {
    fail(ExitCode::kBadConfig,
         "MLFLOW_TRACKING_URI: expected http://, https://, file:// or a folder, found '{}'", printable(uri));
  }
  return std::make_unique<MlflowFolder>(uri);
}

int64_t unix_milliseconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace tessera
