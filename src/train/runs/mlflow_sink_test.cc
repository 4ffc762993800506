// MLflow: requests to a tracking server, and the folder that stands for one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "io/file.h"
#include "report/sinks/mlflow_sink.h"
#include "report/sinks/sinks.h"
#include "support/train/train_test_support.h"
#include "support/web/hub_server.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

Environment variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

// A tracking server that keeps everything it receives.
class TrackingServer {
 public:
  TrackingServer() {
    server_.set_hook([this](const HubServer::Request& request, HubServer::Reply* reply) {
      const std::lock_guard lock(mutex_);
      json answer = json::object();
      const int code = remaining_ == 0 ? 503 : answer_to(request, &answer);
      if (remaining_ > 0) --remaining_;
      *reply = {};
      reply->status = code;
      reply->body = std::make_shared<const std::string>(answer.dump());
    });
  }
  std::string uri() const { return server_.endpoint(); }
  void fail(bool failing) { fail_after(failing ? 0 : -1); }
  void fail_after(int num_requests) {
    const std::lock_guard lock(mutex_);
    remaining_ = num_requests;
  }
  size_t num_requests() const { return server_.requests().size(); }
  HubServer::Request last_request() const { return server_.requests().back(); }

  json params = json::object();
  std::vector<json> metrics;
  std::string experiment, run_name, status;
  int64_t num_runs = 0;

 private:
  int answer_to(const HubServer::Request& request, json* answer) {
    const std::string api = "/api/2.0/mlflow/";
    EXPECT_TRUE(request.target.starts_with(api)) << request.target;
    const std::string method = request.target.substr(api.size());
    if (method == "experiments/get-by-name?experiment_name=my%2Fexperiment%20%26") {
      EXPECT_EQ(request.method, "GET");
      *answer = {{"error_code", "RESOURCE_DOES_NOT_EXIST"}};
      if (experiment.empty()) return 404;
      *answer = {{"experiment", {{"experiment_id", "17"}}}};
      return 200;
    }
    EXPECT_EQ(request.method, "POST") << method;
    EXPECT_EQ(request.header("content-type"), "application/json");
    const json body = json::parse(request.body);
    if (method == "experiments/create") {
      experiment = body.at("name");
      *answer = {{"experiment_id", "17"}};
    } else if (method == "runs/create") {
      EXPECT_GT(body.at("start_time"), int64_t{1'000'000'000'000});
      run_name = body.at("run_name");
      experiment_id_ = body.at("experiment_id");
      ++num_runs;
      *answer = {{"run", {{"info", {{"run_id", "run" + std::to_string(num_runs)}}}}}};
    } else if (method == "runs/log-batch") {
      EXPECT_EQ(body.at("run_id"), "run" + std::to_string(num_runs));
      for (const json& param : body.value("params", json::array())) {
        EXPECT_LE(body["params"].size(), 100u);
        params[param.at("key").get<std::string>()] = param.at("value");
      }
      for (const json& metric : body.value("metrics", json::array())) metrics.push_back(metric);
    } else if (method == "runs/update") {
      status = body.at("status");
    } else {
      ADD_FAILURE() << method;
      return 404;
    }
    return 200;
  }

  std::mutex mutex_;
  int remaining_ = -1;  // requests that are answered; -1 = all
  std::string experiment_id_;
  HubServer server_;
};

LogEntry entry_of(int64_t step, double loss) {
  LogEntry entry;
  entry.values = {{"loss", loss}, {"grad_norm", 1.5}, {"num_input_tokens_seen", int64_t{7}}};
  entry.epoch = 0.5;
  entry.step = step;
  return entry;
}

TrainSummary stopped_by(int signal) {
  TrainSummary summary;
  summary.stop_signal = signal;
  return summary;
}

TEST(MlflowServer, GetsARunWithItsParametersAndValues) {
  TrackingServer server;
  const TestFolder folder;
  const Environment environment = variables({{"MLFLOW_TRACKING_URI", server.uri() + "/"},
                                             {"MLFLOW_EXPERIMENT_NAME", "my/experiment &"},
                                             {"MLFLOW_TRACKING_TOKEN", "secret"}});
  MlflowRun run;
  run.name = "a run";
  run.experiment = "my/experiment &";
  for (int i = 0; i < 250; ++i) run.params["p" + std::to_string(i)] = std::to_string(i);
  MlflowSink sink(open_mlflow_store(environment), run, folder / "mlflow.json", server.uri());
  StepMetrics step;
  step.tokens_per_second = 123;
  sink.on_step(step);
  sink.on_log(entry_of(5, std::nan("")));
  sink.on_log(entry_of(6, 0.1));
  sink.on_finish({});

  EXPECT_EQ(server.experiment, "my/experiment &");
  EXPECT_EQ(server.run_name, "a run");
  EXPECT_EQ(server.params.size(), 250u);
  EXPECT_EQ(server.params.at("p249"), "249");
  EXPECT_EQ(server.status, "FINISHED");
  EXPECT_EQ(server.last_request().header("authorization"), "Bearer secret");
  std::vector<std::string> names;
  for (const json& metric : server.metrics) {
    names.push_back(metric.at("key"));
    EXPECT_EQ(metric.at("step"), names.size() <= 5 ? 5 : 6);
    EXPECT_GT(metric.at("timestamp"), int64_t{1'000'000'000'000});
  }
  EXPECT_THAT(names, ElementsAre("loss", "grad_norm", "num_input_tokens_seen", "epoch", "tokens_per_second",
                                 "loss", "grad_norm", "num_input_tokens_seen", "epoch", "tokens_per_second"));
  EXPECT_EQ(server.metrics[0].at("value"), "NaN");
  EXPECT_EQ(server.metrics[4].at("value"), 123);
  EXPECT_EQ(server.metrics[5].at("value"), 0.1);
  EXPECT_EQ(json::parse(read_text_file(folder / "mlflow.json")),
            json({{"run_id", "run1"}, {"tracking_uri", server.uri()}}));
}

TEST(MlflowServer, LearnsHowTheRunEnded) {
  TrackingServer server;
  const TestFolder folder;
  const Environment environment = variables({{"MLFLOW_TRACKING_URI", server.uri()},
                                             {"MLFLOW_TRACKING_USERNAME", "me"},
                                             {"MLFLOW_TRACKING_PASSWORD", "word"}});
  const auto new_sink = [&](const std::string& id) {
    MlflowRun run;
    run.id = id;
    return MlflowSink(open_mlflow_store(environment), run, folder / "id", "");
  };
  { auto failed = new_sink(""); }
  EXPECT_EQ(server.status, "FAILED");
  EXPECT_EQ(server.last_request().header("authorization"), "Basic bWU6d29yZA==");
  new_sink("run1").on_finish(stopped_by(15));
  EXPECT_EQ(server.status, "KILLED");
  EXPECT_EQ(server.num_runs, 1);
}

TEST(MlflowServer, ThatFailsHalfwayThroughTheBeginningHasOneRun) {
  TrackingServer server;
  const TestFolder folder;
  const auto store = open_mlflow_store(variables({{"MLFLOW_TRACKING_URI", server.uri()}}));
  MlflowRun run;
  run.params = {{"seed", "42"}};
  server.fail_after(1);
  expect_error(ExitCode::kTryAgain, {server.uri(), "status 503"}, [&] { store->begin(run); });
  server.fail(false);
  EXPECT_EQ(store->begin(run), "run1");
  EXPECT_EQ(server.num_runs, 1);
  EXPECT_EQ(server.params, json({{"seed", "42"}}));
}

TEST(MlflowServer, ThatIsAwayForAWhileLosesNothing) {
  TrackingServer server;
  server.fail(true);
  const TestFolder folder;
  testing::internal::CaptureStderr();
  MlflowSink sink(open_mlflow_store(variables({{"MLFLOW_TRACKING_URI", server.uri()}})), {}, folder / "id",
                  "");
  sink.on_log(entry_of(1, 2));
  while (server.num_requests() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  server.fail(false);
  sink.on_finish({});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::AllOf(HasSubstr("status 503"), HasSubstr("training continues"),
                             testing::Not(HasSubstr("could not be stored"))));
  EXPECT_EQ(server.metrics.size(), 5u);
}

TEST(MlflowServer, ThatIsGoneNeverHoldsTrainingUp) {
  const TestFolder folder;
  std::string uri;
  {
    const HubServer closed;
    uri = closed.endpoint();
  }
  testing::internal::CaptureStderr();
  const auto start = std::chrono::steady_clock::now();
  MlflowSink sink(open_mlflow_store(variables({{"MLFLOW_TRACKING_URI", uri}})), {}, folder / "id", "");
  for (int64_t step = 1; step <= 3000; ++step) sink.on_log(entry_of(step, 1));
  sink.on_finish({});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr(uri));
  EXPECT_THAT(said, HasSubstr("MLflow: 15000 values could not be stored"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2);
  EXPECT_FALSE(fs::exists(folder / "id"));
}

TEST(MlflowServer, WhatItRefusesIsDroppedAndCounted) {
  HubServer server;
  server.set_hook([](const HubServer::Request&, HubServer::Reply* reply) {
    *reply = {};
    reply->status = 401;
    reply->body = std::make_shared<const std::string>(R"({"message": "who\nare you?"})");
  });
  const TestFolder folder;
  testing::internal::CaptureStderr();
  {
    MlflowSink sink(open_mlflow_store(variables({{"MLFLOW_TRACKING_URI", server.endpoint()}})), {},
                    folder / "id", "");
    sink.on_log(entry_of(1, 1));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("MLflow at " + server.endpoint() + ": status 401: who\\x0aare you?"));
  EXPECT_THAT(said, HasSubstr("5 values could not be stored"));
}

// The one folder in `folder` that is not hidden.
fs::path only_folder(const fs::path& folder, const fs::path& apart_from = {}) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (entry.is_directory() && !name.starts_with('.') && name != apart_from) found.push_back(entry.path());
  }
  EXPECT_EQ(found.size(), 1u) << folder;
  return found.at(0);
}

std::string line_of(const fs::path& file, const std::string& key) {
  std::istringstream lines(read_text_file(file));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + ": ")) return line.substr(key.size() + 2);
  }
  return "(none)";
}

// The layout of mlflow/store/tracking/file_store.py.
TEST(MlflowFolder, HasTheFilesOfMlflowsFileStore) {
  const TestFolder folder;
  const Environment environment =
      variables({{"MLFLOW_TRACKING_URI", "file://" + (folder / "store").string()}});
  const auto report = [&](const std::string& id, int64_t step) {
    MlflowRun run;
    run.id = id;
    run.name = "name: 1";
    run.experiment = "it's";
    if (id.empty()) run.params = {{"seed", "42"}};
    MlflowSink sink(open_mlflow_store(environment), run, folder / "id", "");
    sink.on_log(entry_of(step, 0.25));
    sink.on_finish({});
    return json::parse(read_text_file(folder / "id")).at("run_id").get<std::string>();
  };
  const std::string id = report("", 3);
  EXPECT_THAT(id, testing::MatchesRegex("[0-9a-f]{32}"));
  EXPECT_EQ(report(id, 4), id);
  const std::string other = report("", 5);

  const fs::path experiment = only_folder(folder / "store");
  EXPECT_THAT(experiment.filename().string(), testing::MatchesRegex("[0-9]{18}"));
  EXPECT_EQ(line_of(experiment / "meta.yaml", "name"), "\"it's\"");
  EXPECT_EQ(line_of(experiment / "meta.yaml", "lifecycle_stage"), "active");
  const fs::path run = experiment / id;
  EXPECT_EQ(only_folder(experiment, id).filename(), other);
  const fs::path meta = run / "meta.yaml";
  EXPECT_EQ(line_of(meta, "experiment_id"), '"' + experiment.filename().string() + '"');
  EXPECT_EQ(line_of(meta, "run_id"), '"' + id + '"');
  EXPECT_EQ(line_of(meta, "run_uuid"), '"' + id + '"');
  EXPECT_EQ(line_of(meta, "run_name"), "\"name: 1\"");
  EXPECT_EQ(line_of(meta, "status"), "3");
  EXPECT_THAT(line_of(meta, "end_time"), testing::MatchesRegex("[0-9]{13}"));
  EXPECT_EQ(line_of(meta, "artifact_uri"), "\"file://" + (run / "artifacts").string() + '"');
  EXPECT_EQ(read_text_file(run / "params/seed"), "42");
  EXPECT_EQ(read_text_file(run / "tags/mlflow.runName"), "name: 1");
  EXPECT_THAT(read_text_file(run / "metrics/loss"),
              testing::MatchesRegex("[0-9]{13} 0.25 3\n[0-9]{13} 0.25 4\n"));
  EXPECT_TRUE(fs::is_directory(run / "artifacts"));
}

TEST(MlflowFolder, AnExperimentOfMlflowsOwnIsFoundByItsName) {
  for (const char* spelling : {"name: other", "name: 'other'", "name: \"other\""}) {
    const TestFolder folder;
    create_folder(folder / "123");
    folder.write("123/meta.yaml",
                 fmt::format("experiment_id: '123'\nlifecycle_stage: active\n{}\n", spelling));
    MlflowRun run;
    run.experiment = "other";
    {
      MlflowSink sink(open_mlflow_store(variables({{"MLFLOW_TRACKING_URI", folder.path().string()}})), run,
                      folder / "id", "");
    }
    EXPECT_EQ(only_folder(folder.path()), folder / "123");
    EXPECT_EQ(line_of(only_folder(folder / "123") / "meta.yaml", "status"), "4");
  }
}

TEST(MlflowFolder, OtherPlacesAreRefused) {
  for (const char* uri : {"databricks", "sqlite:///mlflow.db", "ftp://host"}) {
    expect_error(ExitCode::kBadConfig, {"MLFLOW_TRACKING_URI", "expected http://", uri}, [&] {
      open_mlflow_store(variables({{"MLFLOW_TRACKING_URI", uri}}));
    });
  }
}

TEST(MlflowFolder, IsAPathOrAFileUri) {
  const TestFolder folder;
  const std::string path = folder / "a:b";
  for (const std::string& uri : {path, "file:" + path, "file://" + path}) {
    { MlflowSink sink(open_mlflow_store(variables({{"MLFLOW_TRACKING_URI", uri}})), {}, folder / "id", ""); }
    EXPECT_EQ(line_of(fs::path(path) / "0/meta.yaml", "name"), "\"Default\"");
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(path + "/0"), {}), 3 + 1) << "runs and meta.yaml";
}

TEST(MlflowSinkOfARun, ContinuesTheRunThatItResumes) {
  TinyRun run;
  run.spec.reporting.report_to = {ReportTo::kMlflow};
  run.spec.reporting.run_name = "tiny";
  run.spec.reporting.logging_steps = 1;
  create_folder(run.output());
  const fs::path store = run.folder() / "mlruns";
  const Environment environment = variables({{"MLFLOW_TRACKING_URI", store.string()}});
  const std::string config =
      R"({"vocab_size": 13, "../escape": 1, "long": ")" + std::string(300, 'x') + "\"}";
  const auto report = [&](std::optional<int64_t> resumed_step) {
    const auto sinks = make_sinks({run.spec, resumed_step, 4, config}, environment);
    ASSERT_EQ(sinks.size(), 1u);
    sinks[0]->on_log(entry_of(resumed_step.value_or(0) + 1, 1));
    sinks[0]->on_finish({});
  };
  report({});
  report(4);
  const fs::path folder = only_folder(only_folder(store));
  EXPECT_EQ(only_folder(store).filename(), "0");
  EXPECT_THAT(read_text_file(folder / "metrics/epoch"),
              testing::MatchesRegex("[0-9]+ 0.5 1\n[0-9]+ 0.5 5\n"));
  EXPECT_EQ(line_of(folder / "meta.yaml", "run_name"), "\"tiny\"");
  EXPECT_EQ(read_text_file(folder / "params/vocab_size"), "13");
  EXPECT_EQ(read_text_file(folder / "params/logging_steps"), "1.0");
  EXPECT_EQ(read_text_file(folder / "params/run_name"), "tiny");
  EXPECT_FALSE(fs::exists(folder / "params/long"));
  EXPECT_FALSE(fs::exists(folder / "escape"));
  for (const char* damaged : {"", "{}", "[1]", R"({"tracking_uri": 1, "run_id": 2})"}) {
    write_text_file(run.output() / "mlflow.json", damaged);
    const auto sinks = make_sinks({run.spec, 4, 4, config}, environment);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(store / "0"), {}), 1 + 1 + 4) << "runs and meta.yaml";
}

}  // namespace
}  // namespace tessera
