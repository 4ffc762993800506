// Runs that serve metrics, asked by programs of their own.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "e2e/host_job.h"
#include "e2e/process.h"
#include "e2e/tiny_model.h"
#include "support/web/free_port.h"
#include "support/web/metrics_text.h"
#include "support/web/web_client.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

// Asks until `body` returns true; false after `limit_s`.
template <typename Body>
bool wait_until(double limit_s, const Body& body) {
  const Stopwatch time;
  while (!body()) {
    if (time.seconds() > limit_s) return false;
    std::this_thread::sleep_for(50ms);
  }
  return true;
}

class ServedRuns : public testing::Test {
 protected:
  std::vector<std::string> arguments(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {tessera_binary()};
    std::vector<std::string> run =
        tiny_.train_arguments(output_, {"--max_steps", "1000000", "--save_strategy", "no"});
    all.insert(all.end(), run.begin(), run.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // The port in endpoint.json, once it is there.
  int port_in(const std::string& name) const {
    const fs::path file = fs::path(output_) / name;
    EXPECT_TRUE(wait_until(60, [&] { return fs::exists(file); })) << file;
    if (!fs::exists(file)) return 0;
    const std::string url = json::parse(read_file(file))["url"];
    return std::stoi(url.substr(url.rfind(':') + 1));
  }
  // The line of metrics.jsonl of this step, which is written after the metrics are updated.
  json line_of(int64_t step) const {
    json found;
    EXPECT_TRUE(wait_until(20,
                           [&] {
                             std::ifstream in(fs::path(output_) / "metrics.jsonl");
                             for (std::string line; found.is_null() && std::getline(in, line) && !in.eof();) {
                               const json metrics = json::parse(line);
                               if (metrics["step"] == step) found = metrics;
                             }
                             return !found.is_null();
                           }))
        << "step " << step;
    return found;
  }
  static void end(StartedProcess& run) {
    run.send(SIGTERM);
    EXPECT_TRUE(run.wait(60s));
  }

  TinyModel tiny_;
  std::string output_ = tiny_.folder / "out";
};

TEST_F(ServedRuns, TellTheLossOfMetricsJsonlAndWhetherTheyAreWell) {
  StartedProcess run(arguments({"--metrics_port", "0"}), {});
  const int port = port_in("endpoint.json");
  ASSERT_TRUE(wait_for_steps(output_, 3, 60s)) << run.err();
  const MetricsText text = parse_metrics(body_of(web_get(port, "/metrics")), false);
  const json line = line_of(static_cast<int64_t>(text.at("tessera_train_step")));
  EXPECT_EQ(text.at("tessera_train_loss"), line.at("loss"));
  EXPECT_EQ(text.at("tessera_train_grad_norm"), line.at("grad_norm"));
  EXPECT_EQ(text.at("tessera_train_max_steps"), 1'000'000);
  EXPECT_EQ(text.at(R"(tessera_step_seconds_count{phase="all"})"), text.at("tessera_train_step"));
  EXPECT_GT(text.at("tessera_disk_free_bytes"), 0);
  EXPECT_THAT(web_get(port, "/readyz"), StartsWith("HTTP/1.1 200 "));
  const json health = json::parse(body_of(web_get(port, "/healthz")));
  EXPECT_EQ(health["status"], "ok");
  EXPECT_GE(health["step"], 3);
  end(run);
  EXPECT_FALSE(fs::exists(output_ + "/endpoint.json"));
  EXPECT_THAT(run.err(), HasSubstr(fmt::format("metrics: http://127.0.0.1:{}/metrics", port)));
}

TEST_F(ServedRuns, AStepThatTakesLongerThanTheLimitIsFound) {
  // No step is that short.
  StartedProcess run(arguments({"--metrics_port", "0", "--health_timeout", "1e-5"}), {});
  const int port = port_in("endpoint.json");
  std::string stalled;
  EXPECT_TRUE(wait_until(60, [&] {
    stalled = web_get(port, "/healthz");
    return stalled.starts_with("HTTP/1.1 503 ");
  }));
  EXPECT_THAT(stalled, HasSubstr("\"status\":\"stalled\""));
  end(run);
}

TEST_F(ServedRuns, EveryNodeHasItsEndpoint) {
  std::vector<std::unique_ptr<StartedProcess>> ranks;
  const std::string master = fmt::format("MASTER_PORT={}", free_port());
  for (int rank = 0; rank < 2; ++rank) {
    StartOptions options;
    options.environment = {
        fmt::format("RANK={}", rank),       "WORLD_SIZE=2",          "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
        fmt::format("GROUP_RANK={}", rank), "MASTER_ADDR=127.0.0.1", master};
    ranks.push_back(
        std::make_unique<StartedProcess>(arguments({"--metrics_port", "0", "--num_threads", "1"}), options));
  }
  const int ports[] = {port_in("endpoint.json"), port_in("endpoint-node-1.json")};
  ASSERT_TRUE(wait_for_steps(output_, 3, 60s)) << ranks[0]->err() << ranks[1]->err();
  for (int node = 0; node < 2; ++node) {
    const MetricsText text = parse_metrics(body_of(web_get(ports[node], "/metrics")), false);
    EXPECT_EQ(text.types.contains("tessera_train_loss"), node == 0);
    EXPECT_EQ(text.samples.contains(R"(tessera_rank_lag_seconds{rank="1"})"), node == 0);
    EXPECT_GT(text.at(R"(tessera_collectives_total{op="all_gather",scope="network"})"), 3);
    EXPECT_GT(text.at(R"(tessera_collective_bytes_total{op="all_gather",scope="network"})"), 1000);
    EXPECT_GT(text.at(R"(tessera_network_bytes_total{direction="sent"})"), 1000);
    EXPECT_TRUE(wait_until(20, [&] { return web_get(ports[node], "/readyz").starts_with("HTTP/1.1 200 "); }));
  }
  for (const auto& rank : ranks) rank->send(SIGTERM);
  for (const auto& rank : ranks) EXPECT_TRUE(rank->wait(60s));
}

TEST_F(ServedRuns, PrometheusFindsTheLossOfMetricsJsonl) {
  if (std::system("command -v prometheus >/dev/null") != 0) GTEST_SKIP() << "prometheus is not installed";
  StartedProcess run(arguments({"--metrics_port", "0"}), {});
  const int port = port_in("endpoint.json");
  const int its_port = free_port();
  const std::string config = tiny_.folder.write(
      "prometheus.yml",
      fmt::format("scrape_configs:\n- job_name: tessera\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n"
                  "  static_configs:\n  - targets: ['127.0.0.1:{}']\n",
                  port));
  StartedProcess prometheus(
      {"prometheus", "--config.file=" + config, "--storage.tsdb.path=" + (tiny_.folder / "tsdb"),
       fmt::format("--web.listen-address=127.0.0.1:{}", its_port)},
      {});
  ASSERT_TRUE(prometheus.wait_for_output("Server is ready", 60s)) << prometheus.err();
  // At one moment, so that all values are of the same scrape; a second ago, so that no scrape is under way.
  const auto value_of = [&](const std::string& name, double time) -> std::optional<double> {
    const std::string answer =
        body_of(web_get(its_port, fmt::format("/api/v1/query?query={}&time={}", name, time)));
    const size_t begin = answer.find('{');
    const json result = json::parse(answer.substr(begin, answer.rfind('}') + 1 - begin))["data"]["result"];
    if (result.empty()) return std::nullopt;
    return std::stod(result[0]["value"][1].get<std::string>());
  };
  double time = 0;
  ASSERT_TRUE(wait_until(60, [&] {
    time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() - 1;
    return value_of("tessera_train_step", time).value_or(0) >= 3;
  })) << run.err();
  const double step = *value_of("tessera_train_step", time);
  EXPECT_EQ(value_of("tessera_train_loss", time),
            line_of(static_cast<int64_t>(step)).at("loss").get<double>());
  EXPECT_EQ(value_of("sum(tessera_step_seconds_count)", time), 9 * step);
  EXPECT_EQ(value_of("up", time), 1);
  end(run);
}

}  // namespace
}  // namespace tessera
