#include "report/sinks/trainjob_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "support/web/tls_server.h"
#include "test_folder.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kPath[] = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/training/trainjobs/llama/status";

StepMetrics step(int64_t number) {
  StepMetrics metrics;
  metrics.step = number;
  metrics.loss = 2.5;
  metrics.eta_s = 90.4;
  return metrics;
}

class TrainJobStatusTest : public testing::Test {
 protected:
  TrainJobStatusTest() {
    write_text_file(folder_ / "token", "first-token\n");
    write_text_file(folder_ / "ca.crt", certificate_.pem());
  }
  TrainJobServer settings(const TlsServer& server, const std::string& host = "localhost") const {
    return {.url = fmt::format("https://{}:{}{}", host, server.port(), kPath),
            .ca_file = (folder_ / "ca.crt").string(),
            .token_file = (folder_ / "token").string(),
            .interval = 1ms,
            .longest_pause = 4ms,
            .request_limit = 1s};
  }
  static void plan(TrainJobStatus& status, int64_t max_steps) {
    RunPlan plan;
    plan.max_steps = max_steps;
    status.on_plan(plan);
  }
  static json status_in(const TlsServer::Request& request) {
    return json::parse(request.body).at("trainerStatus");
  }

  const TestFolder folder_;
  const TestCertificate certificate_;
};

TEST_F(TrainJobStatusTest, TellsHowFarTheRunIs) {
  TlsServer server(certificate_);
  TrainJobStatus status(settings(server));
  plan(status, 3'703'701);
  ASSERT_TRUE(server.wait_for_requests(1, 10s));
  EXPECT_EQ(status_in(server.requests()[0])["progressPercentage"], 0);
  status.on_step(step(1'234'567));
  ASSERT_TRUE(server.wait_for_requests(2, 10s));
  const TlsServer::Request request = server.requests()[1];
  EXPECT_EQ(request.line, fmt::format("POST {} HTTP/1.1", kPath));
  EXPECT_EQ(request.authorization, "Bearer first-token");
  const json sent = status_in(request);
  EXPECT_EQ(sent["progressPercentage"], 33);
  EXPECT_EQ(sent["estimatedRemainingSeconds"], 90);
  EXPECT_THAT(sent["metrics"].dump(), AllOf(HasSubstr(R"({"name":"loss","value":"2.5"})"),
                                            HasSubstr(R"({"name":"step","value":"1234567"})")));
  EXPECT_THAT(sent["lastUpdatedTime"].get<std::string>(), testing::MatchesRegex("20..-..-..T..:..:..Z"));
}

TEST_F(TrainJobStatusTest, EndSendsTheLastState) {
  TlsServer server(certificate_);
  TrainJobStatus status(settings(server, "127.0.0.1"));
  plan(status, 300);
  LogEntry evaluation;
  evaluation.values = {{"eval_loss", 1.25}};
  status.on_log(evaluation);
  TrainSummary summary;
  summary.num_steps = 120;  // ended early by its own rule
  status.on_finish(summary);
  const json sent = status_in(server.requests().back());
  EXPECT_EQ(sent["progressPercentage"], 100);
  EXPECT_EQ(sent["estimatedRemainingSeconds"], 0);
  EXPECT_THAT(sent["metrics"].dump(), HasSubstr(R"({"name":"eval_loss","value":"1.25"})"));
}

TEST_F(TrainJobStatusTest, StoppedRunKeepsItsPercentage) {
  TlsServer server(certificate_);
  TrainJobStatus status(settings(server));
  plan(status, 300);
  TrainSummary summary;
  summary.num_steps = 120;
  summary.stop_signal = 15;
  status.on_finish(summary);
  const json sent = status_in(server.requests().back());
  EXPECT_EQ(sent["progressPercentage"], 40);
  EXPECT_FALSE(sent.contains("estimatedRemainingSeconds"));
}

TEST_F(TrainJobStatusTest, TokensAndCertificatesAreReplacedDuringTheRun) {
  TlsServer server(certificate_, [](const TlsServer::Request& request) {
    return TlsServer::Reply{.status = request.authorization == "Bearer old" ? 403 : 200};
  });
  TrainJobStatus status(settings(server));
  testing::internal::CaptureStderr();
  plan(status, 10);
  ASSERT_TRUE(server.wait_for_requests(1, 10s));
  write_text_file(folder_ / "token", "second");
  const TestCertificate next;
  server.use(next);
  write_text_file(folder_ / "ca.crt", next.pem());
  status.on_step(step(1));
  ASSERT_TRUE(server.wait_for_requests(2, 10s));
  EXPECT_EQ(server.requests().back().authorization, "Bearer second");
  // The old token is refused until the kubelet has written the new one: the state is sent again.
  write_text_file(folder_ / "token", "old");
  status.on_step(step(5));
  ASSERT_TRUE(server.wait_for_requests(4, 10s));
  write_text_file(folder_ / "token", "third");
  const Stopwatch time;
  while (server.requests().back().authorization != "Bearer third" && time.seconds() < 10)
    server.wait_for_requests(server.requests().size() + 1, 10ms);
  EXPECT_EQ(server.requests().back().authorization, "Bearer third") << "without a new state";
  status.on_finish({});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("status 403"));
}

TEST_F(TrainJobStatusTest, UntrustedServerGetsNoToken) {
  TlsServer server{TestCertificate()};
  testing::internal::CaptureStderr();
  {
    TrainJobStatus status(settings(server));
    for (int64_t i = 0; i < 20; ++i) status.on_step(step(i));
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, AllOf(HasSubstr("the status of the TrainJob could not be sent"),
                         HasSubstr("no secure connection"), HasSubstr("training continues")));
  EXPECT_EQ(log.find("warning"), log.rfind("warning")) << log;
  EXPECT_GT(server.num_connections(), 0);
  EXPECT_TRUE(server.requests().empty());
}

TEST_F(TrainJobStatusTest, SlowServerHoldsUpNothing) {
  TlsServer server(certificate_, [](const TlsServer::Request&) { return TlsServer::Reply{.delay = 1h}; });
  testing::internal::CaptureStderr();
  const Stopwatch time;
  {
    TrainJobStatus status(settings(server));
    plan(status, 100'000);
    ASSERT_TRUE(server.wait_for_requests(1, 10s));
    const Stopwatch steps;
    for (int64_t i = 0; i < 10'000; ++i) status.on_step(step(i));
    EXPECT_LT(steps.seconds(), 1) << "of 10,000 steps";
    status.on_finish({});
  }
  EXPECT_LT(time.seconds(), 8) << "two requests of a second, on a busy machine";
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("no data for 1 s"));
}

TEST_F(TrainJobStatusTest, RefusalSaysWhatTheServerSays) {
  TlsServer server(certificate_, [](const TlsServer::Request&) {
    return TlsServer::Reply{.status = 404, .body = R"({"kind":"Status","message":"Train job not found"})"};
  });
  testing::internal::CaptureStderr();
  { TrainJobStatus(settings(server)).on_step(step(1)); }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("status 404: Train job not found"));
}

TEST_F(TrainJobStatusTest, MissingServerTokenAndNameAreOneWarningEach) {
  const auto warning = [](const TrainJobServer& server) {
    testing::internal::CaptureStderr();
    { TrainJobStatus(server).on_step(step(1)); }
    return testing::internal::GetCapturedStderr();
  };
  TrainJobServer gone;
  {
    const TlsServer server(certificate_);
    gone = settings(server);
  }
  EXPECT_THAT(warning(gone), HasSubstr("localhost"));
  gone.url = "https://no-such-host.invalid/status";
  EXPECT_THAT(warning(gone), HasSubstr("cannot resolve 'no-such-host.invalid'"));
  write_text_file(folder_ / "token", "two\nlines");
  EXPECT_THAT(warning(gone), HasSubstr("expected a token"));
  gone.token_file += ".missing";
  EXPECT_THAT(warning(gone), HasSubstr("token.missing"));
}

TEST(TrainJobServerVariables, AllThreeMustBeThere) {
  std::map<std::string, std::string> variables;
  const auto server = [&] {
    return trainjob_server([&](const std::string& name) {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
  };
  EXPECT_FALSE(server());
  variables["KUBEFLOW_TRAINER_SERVER_URL"] = "https://trainer.kubeflow-system.svc:10443/status";
  variables["KUBEFLOW_TRAINER_SERVER_CA_CERT"] = "/var/run/secrets/kubeflow/trainer/ca.crt";
  testing::internal::CaptureStderr();
  EXPECT_FALSE(server());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("KUBEFLOW_TRAINER_SERVER_TOKEN is not"));
  variables["KUBEFLOW_TRAINER_SERVER_TOKEN"] = "/var/run/secrets/kubeflow/trainer/token";
  ASSERT_TRUE(server());
  EXPECT_EQ(server()->interval, 5s);
  variables["KUBEFLOW_TRAINER_SERVER_URL"] = "http://trainer/status";
  testing::internal::CaptureStderr();
  EXPECT_FALSE(server());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("expected https://"));
}

}  // namespace
}  // namespace tessera
