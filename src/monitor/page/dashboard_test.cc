#include "monitor/page/dashboard.h"

#include <gmock/gmock.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "monitor/records/page_html.h"
#include "support/web/web_client.h"
#include "test_folder.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using OrderedJson = nlohmann::ordered_json;

StepMetrics metrics_of(int64_t step, double loss) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = loss;
  metrics.num_tokens = 10;
  metrics.step_time_s = 0.5;
  return metrics;
}

// A page at its own server, for the run that writes to the folder "out".
class DashboardTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_page()) GTEST_SKIP() << "built without npm: there is no page";
    spec_.output_dir = (folder_.path() / "out").string();
    server_ = std::make_unique<WebServer>(WebServerOptions{});
    dashboard_ = std::make_unique<Dashboard>(spec_, *server_);
    server_->start();
  }

  std::string get(const std::string& target) { return web_get(server_->port(), target); }

  // Asks until the answer is prepared.
  std::string response_to(const std::string& target) {
    for (const Stopwatch time; time.seconds() < 120;) {
      const std::string response = get(target);
      if (!response.starts_with("HTTP/1.1 202")) return response;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return "no answer";
  }
  OrderedJson json_of(const std::string& target) { return OrderedJson::parse(body_of(response_to(target))); }

  // The own run, once it has this step.
  OrderedJson own_run_with(int64_t step) {
    for (const Stopwatch time; time.seconds() < 120;) {
      OrderedJson run = json_of("/api/run?name=out");
      if (run["last_step"] == step) return run;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return {};
  }

  void write_run(const std::string& name, int num_steps) {
    const auto path = folder_.path() / name;
    std::filesystem::create_directories(path);
    std::ofstream out(path / "metrics.jsonl");
    for (int step = 1; step <= num_steps; ++step)
      out << "{\"step\":" << step << ",\"loss\":" << 100 + step << "}\n";
  }

  TestFolder folder_;
  RunSettings spec_;
  std::unique_ptr<WebServer> server_;
  std::unique_ptr<Dashboard> dashboard_;
};

TEST_F(DashboardTest, ServesThePageWithItsOwnPolicy) {
  const std::string response = get("/");
  EXPECT_THAT(response, AllOf(HasSubstr("text/html"), HasSubstr("script-src 'sha256-"),
                              Not(HasSubstr("unsafe-inline"))));
  EXPECT_EQ(body_of(response), live_page());
}

TEST_F(DashboardTest, TellsTheRunWithTheValuesOfItsSteps) {
  std::vector<RankStep> ranks = {{.compute_s = 0.25}, {.compute_s = 0.5}};
  for (int step = 1; step <= 100; ++step) {
    StepMetrics metrics = metrics_of(step, 5.0 / step);
    metrics.ranks = ranks;
    dashboard_->on_step(metrics);
    ranks[0].compute_s += 0.001;  // the referenced data is gone by the time it is read
  }
  dashboard_->on_warning("a <b>warning</b>");
  const OrderedJson run = own_run_with(100);
  EXPECT_EQ(run["steps"]["columns"]["loss"][99], 0.05);
  EXPECT_NEAR(run["ranks"]["last_s"][0].get<double>(), 0.25 + 0.099, 1e-9);
  EXPECT_EQ(run["messages"][0]["message"], "a <b>warning</b>");
}

TEST_F(DashboardTest, EventsComeAsTheyHappenAndThoseMissedFirst) {
  dashboard_->on_step(metrics_of(1, 4));
  const OrderedJson run = own_run_with(1);
  dashboard_->on_step(metrics_of(2, 3));
  own_run_with(2);
  WebClient client(server_->port());
  client.send("GET /api/events?after=" + std::to_string(run["last_event_id"].get<int64_t>()) +
              " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(client.read_until("\"step\":2"),
              AllOf(HasSubstr("event: step"), Not(HasSubstr("\"step\":1,"))));
  dashboard_->on_step(metrics_of(3, 2));
  dashboard_->on_warning("slow");
  EXPECT_THAT(client.read_until("slow"), AllOf(HasSubstr("\"step\":3"), HasSubstr("event: record")));
}

TEST_F(DashboardTest, APageThatMissedTooMuchOrComesFromAnEarlierStartReloads) {
  for (int step = 1; step <= 1500; ++step) dashboard_->on_step(metrics_of(step, 1));
  const int64_t last_id = own_run_with(1500)["last_event_id"];
  for (const int64_t after : {int64_t{5}, last_id - 1400, last_id + 10}) {
    WebClient client(server_->port());
    client.send("GET /api/events HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: " + std::to_string(after) +
                "\r\n\r\n");
    EXPECT_THAT(client.read_until("event: reload"), HasSubstr("event: reload")) << after - last_id;
  }
}

TEST_F(DashboardTest, ShowsEarlierRunsAndThoseInFoldersNextToIt) {
  write_run("other", 3);
  write_run("out/previous-1", 7);
  std::filesystem::create_directories(folder_.path() / "no run");
  const OrderedJson list = json_of("/api/runs");
  std::vector<std::string> names;
  for (const auto& run : list["runs"]) names.push_back(run["name"]);
  EXPECT_EQ(list["live"], "out");
  EXPECT_THAT(names, testing::UnorderedElementsAre("out", "other", "out/previous-1"));
  EXPECT_EQ(json_of("/api/run?name=out/previous-1")["last_step"], 7);
  EXPECT_EQ(json_of("/api/run?name=other")["steps"]["columns"]["loss"][2], 103);
}

TEST_F(DashboardTest, ReadsNothingButRuns) {
  write_run("other", 3);
  std::ofstream(folder_.path() / "secret") << "secret";
  for (const char* name :
       {"../secret", "secret", "..", "%2e%2e%2fsecret", "/etc/passwd", "other/../secret", ""}) {
    EXPECT_THAT(response_to(std::string("/api/run?name=") + name),
                AllOf(HasSubstr("HTTP/1.1 404"), HasSubstr("no such run")))
        << name;
  }
}

TEST_F(DashboardTest, ADamagedRunIsOneLine) {
  write_run("other", 3);
  std::ofstream(folder_.path() / "other" / "metrics.jsonl", std::ios::app) << "damage\n";
  const std::string response = response_to("/api/run?name=other");
  EXPECT_THAT(response, AllOf(HasSubstr("HTTP/1.1 422"), HasSubstr("metrics.jsonl: line 4: ")));
}

TEST_F(DashboardTest, ARangeOfStepsIsFinerThanTheWhole) {
  for (int step = 1; step <= 6000; ++step) dashboard_->on_step(metrics_of(step, step % 97));
  EXPECT_LT(own_run_with(6000)["steps"]["step"].size(), 4001u);
  const OrderedJson range = json_of("/api/steps?run=out&from=3000&to=3999");
  EXPECT_EQ(range["step"].size(), 1000u);
  EXPECT_EQ(json_of("/api/steps?run=out&from=x&to=99999999999999999999")["num_steps"], 6000);
}

TEST_F(DashboardTest, AResumedRunHasItsEarlierSteps) {
  write_run("out", 8);
  dashboard_->on_resume("checkpoint-5", 5, "");
  dashboard_->on_step(metrics_of(6, 1));
  const OrderedJson run = own_run_with(6);
  EXPECT_EQ(run["steps"]["columns"]["loss"][4], 105);
  EXPECT_EQ(run["steps"]["columns"]["loss"][5], 1);
}

TEST_F(DashboardTest, ManyDifferentQuestionsAreRefusedNotCollected) {
  int num_busy = 0;
  for (int i = 0; i < 200; ++i)
    num_busy += get("/api/steps?run=out&from=" + std::to_string(i)).starts_with("HTTP/1.1 503") ? 1 : 0;
  EXPECT_EQ(json_of("/api/runs")["live"], "out") << num_busy;
}

TEST_F(DashboardTest, AStepTakesTheTrainingThreadMicroseconds) {
  std::vector<RankStep> ranks(64);
  double best_s = 1;
  for (int trial = 0; trial < 20; ++trial) {
    const Stopwatch time;
    for (int step = 1; step <= 20; ++step) {
      StepMetrics metrics = metrics_of(20 * trial + step, 1);
      metrics.ranks = ranks;
      dashboard_->on_step(metrics);
    }
    best_s = std::min(best_s, time.seconds() / 20);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  RecordProperty("step_us", std::to_string(1e6 * best_s));
  EXPECT_LT(best_s, 50e-6);  // 0.1 % of a step of 50 ms
}

TEST_F(DashboardTest, WhatIsToldBeforeItsEndStillArrives) {
  WebClient client(server_->port());
  client.send("GET /api/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  client.read_until("reload");
  for (int step = 1; step <= 200; ++step) dashboard_->on_step(metrics_of(step, 1));
  dashboard_->on_finish(TrainSummary());
  dashboard_.reset();
  EXPECT_THAT(client.read_until("\"finish\""), HasSubstr("\"step\":200,"));
  EXPECT_THAT(get("/api/runs"), testing::AnyOf(HasSubstr("503"), HasSubstr("200")));
}

}  // namespace
}  // namespace tessera
