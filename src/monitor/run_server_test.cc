#include "monitor/run_server.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "expect_error.h"
#include "io/file.h"
#include "monitor/metrics/metric_table.h"
#include "monitor/records/page_html.h"
#include "platform/stop_signal.h"
#include "settings/derived.h"
#include "support/web/metrics_text.h"
#include "support/web/web_client.h"
#include "test_folder.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class RunServerTest : public testing::Test {
 protected:
  RunServerTest() {
    spec_.output_dir = (folder_.path() / "out").string();
    spec_.reporting.metrics_port = 0;
  }
  ~RunServerTest() override { ::unsetenv("TESSERA_METRICS_TOKEN"); }
  std::unique_ptr<RunServer> open() { return RunServer::open(spec_, single_process(), "1.2.3"); }
  nlohmann::json endpoint() {
    return nlohmann::json::parse(read_text_file(folder_.path() / "out" / "endpoint.json"));
  }

  TestFolder folder_;
  RunSettings spec_;
};

TEST_F(RunServerTest, NothingIsServedUnlessAskedFor) {
  spec_.reporting.metrics_port.reset();
  EXPECT_EQ(open(), nullptr);
  spec_.reporting.report_to = {ReportTo::kPrometheus};
  EXPECT_EQ(serving_port(spec_.reporting), kDefaultMetricsPort);
  spec_.reporting.metrics_port = 0;
  EXPECT_EQ(serving_port(spec_.reporting), 0);
}

TEST_F(RunServerTest, MetricsAreServedInBothFormats) {
  const auto server = open();
  StepMetrics metrics;
  metrics.step = 4;
  metrics.loss = 3.25;
  static_cast<TrainObserver&>(*server).on_step(metrics);
  const int port = server->web().port();
  const std::string plain = web_get(port, "/metrics");
  EXPECT_THAT(plain, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("text/plain; version=0.0.4")));
  const MetricsText text = parse_metrics(body_of(plain), false);
  EXPECT_EQ(text.at("tessera_train_loss"), 3.25);
  EXPECT_EQ(text.at("tessera_restarts_total"), 0);
  EXPECT_GT(text.at(R"(tessera_memory_bytes{kind="resident"})"), 1e6);
  EXPECT_GE(text.at(R"(tessera_memory_bytes{kind="limit"})"),
            text.at(R"(tessera_memory_bytes{kind="used"})"));
  EXPECT_EQ(text.at(R"(tessera_collective_bytes_total{op="all_gather",scope="network"})"), 0);
  std::set<std::string> names;
  for (const MetricInfo& info : all_metrics()) names.emplace(info.name);
  for (const auto& [family, type] : text.types) EXPECT_TRUE(names.contains(family)) << family;
  const std::string open_metrics =
      web_get(port, "/metrics", "Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n");
  EXPECT_THAT(open_metrics, HasSubstr("application/openmetrics-text; version=1.0.0; charset=utf-8"));
  EXPECT_EQ(parse_metrics(body_of(open_metrics), true).at("tessera_train_loss"), 3.25);
}

TEST_F(RunServerTest, ASignalIsServedUntilTheProcessEnds) {
  const auto server = open();
  const StopSignals signals;
  const auto served = [&](const std::string& name) {
    return parse_metrics(body_of(web_get(server->web().port(), "/metrics")), false).at(name);
  };
  EXPECT_EQ(served("tessera_stop_requested"), 0);
  EXPECT_EQ(served("tessera_progress_limit_seconds"), 3600);
  ::raise(SIGTERM);
  EXPECT_EQ(served("tessera_stop_requested"), 1);
}

TEST_F(RunServerTest, ReadyAfterTheFirstStep) {
  const auto server = open();
  const int port = server->web().port();
  EXPECT_THAT(web_get(port, "/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(web_get(port, "/healthz"), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("application/json")));
  static_cast<TrainObserver&>(*server).on_step({});
  EXPECT_THAT(web_get(port, "/readyz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(RunServerTest, TheFolderOfTheRunHasTheEndpointWhileItIsServed) {
  auto server = open();
  server->on_output_folder();
  EXPECT_EQ(endpoint()["url"], server->web().url());
  EXPECT_EQ(endpoint()["pid"], getpid());
  EXPECT_FALSE(endpoint().contains("token"));
  struct stat status {};
  ASSERT_EQ(::stat((folder_.path() / "out/endpoint.json").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600);
  server.reset();
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path() / "out"));
}

TEST_F(RunServerTest, OtherMachinesNeedTheTokenForThePageAlone) {
  spec_.reporting.metrics_host = "0.0.0.0";
  if (!has_page()) GTEST_SKIP() << "built without npm: there is no page";
  spec_.reporting.report_to = {ReportTo::kDashboard};
  const auto server = open();
  server->on_output_folder();
  const std::string token = endpoint()["token"];
  const int port = server->web().port();
  EXPECT_THAT(web_get(port, "/api/runs"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(web_get(port, "/api/runs", "Authorization: Bearer " + token + "\r\n"),
              StartsWith("HTTP/1.1 202 "));
  EXPECT_THAT(web_get(port, "/metrics"), HasSubstr("tessera_restarts_total 0"));
  EXPECT_THAT(web_get(port, "/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(RunServerTest, TheEnvironmentMayNameTheToken) {
  ::setenv("TESSERA_METRICS_TOKEN", "0123456789abcdef", 1);
  const auto server = open();
  EXPECT_THAT(web_get(server->web().port(), "/metrics"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(web_get(server->web().port(), "/metrics?token=0123456789abcdef"), HasSubstr("tessera_"));
  for (const char* wrong : {"short", "with a space in it!", "0123456789abcdef;"}) {
    ::setenv("TESSERA_METRICS_TOKEN", wrong, 1);
    const Error error = error_of([&] { open(); });
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("TESSERA_METRICS_TOKEN: expected 16 to 256 letters"), Not(HasSubstr(wrong))));
  }
}

TEST_F(RunServerTest, PromtoolFindsNothingToCriticise) {
  if (std::system("command -v promtool >/dev/null") != 0) GTEST_SKIP() << "promtool is not installed";
  const auto server = open();
  static_cast<TrainObserver&>(*server).on_step({});
  static_cast<TrainObserver&>(*server).on_evaluation("", {});
  static_cast<TrainObserver&>(*server).on_checkpoint({});
  const std::string file = (folder_.path() / "metrics.txt").string();
  write_text_file(file, body_of(web_get(server->web().port(), "/metrics")));
  EXPECT_EQ(std::system(("promtool check metrics <" + shell_quoted(file)).c_str()), 0);
}

}  // namespace
}  // namespace tessera
