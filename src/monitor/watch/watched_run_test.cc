#include "monitor/watch/watched_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "expect_error.h"
#include "monitor/watch/event_stream.h"
#include "monitor/watch/run_source.h"
#include "test_folder.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ordered_json step_line(int64_t number, double loss = 2) {
  return {{"step", number},        {"loss", loss},
          {"learning_rate", 1e-4}, {"tokens_per_second", 500},
          {"step_time_s", 2.0},    {"tflops", 0.5},
          {"peak_tflops", 2.0},    {"eta_s", 100.0 - static_cast<double>(number)}};
}

ordered_json event_line(const std::string& name, double time) {
  return {{"event", name}, {"time", time}, {"step", 7}};
}

ordered_json start_line(double time) {
  ordered_json record = event_line("start", time);
  record.update({{"host", "node7"},
                 {"num_parameters", 1000000},
                 {"world_size", 4},
                 {"num_nodes", 1},
                 {"max_steps", 50}});
  return record;
}

TEST(WatchedRun, HasTheProgressOfTheRunItself) {
  WatchedRun run;
  EXPECT_FALSE(run.has_begun());
  EXPECT_EQ(run.json(0)["state"], "waiting");
  run.add(start_line(1));
  EXPECT_TRUE(run.has_begun());
  for (int64_t i = 1; i <= 20; ++i) run.add(step_line(i, 3 - 0.1 * static_cast<double>(i)));
  const RunProgress now = run.progress(0);
  EXPECT_EQ(now.step, 20);
  EXPECT_EQ(now.max_steps, 50);
  EXPECT_EQ(now.loss, 1);
  EXPECT_NEAR(now.loss_change.value(), -1, 1e-12);
  EXPECT_EQ(now.trend, Trend::kFalling);
  EXPECT_EQ(now.learning_rate, 1e-4);
  EXPECT_EQ(now.tokens_per_second, 500);
  EXPECT_EQ(now.mfu, 0.25);
  EXPECT_EQ(now.eta_s, 80);
  EXPECT_EQ(run.progress(30).eta_s, 50) << "time has passed since the step";
  EXPECT_EQ(run.json(3)["state"], "running");
  EXPECT_EQ(run.json(3)["loss"], 1.0);
  EXPECT_EQ(run.json(3)["eta_s"], 77.0);
}

TEST(WatchedRun, SaysThatItIsStale) {
  WatchedRun run;
  run.add(step_line(3));
  EXPECT_FALSE(run.is_stale(59));
  EXPECT_TRUE(run.is_stale(61));
  EXPECT_EQ(run.progress(600).activity, "last step 10:00 ago");
  EXPECT_EQ(run.progress(600).eta_s, std::nullopt);
  ordered_json slow = step_line(4);
  slow["step_time_s"] = 30;
  run.add(slow);
  EXPECT_FALSE(run.is_stale(299)) << "ten steps";
  EXPECT_TRUE(run.is_stale(301));
}

TEST(WatchedRun, TellsWhatHappensOnce) {
  WatchedRun run;
  run.add(start_line(1));
  ordered_json log = event_line("log", 2);
  log.update({{"loss", 2.00004}, {"learning_rate", 0.001}, {"epoch", 0.5}});
  run.add(log);
  ordered_json checkpoint = event_line("checkpoint", 3);
  checkpoint.update({{"folder", "out/checkpoint-7"}, {"bytes", 3 << 20}, {"write_s", 1.5}});
  run.add(checkpoint);
  ordered_json warning = event_line("warning", 4);
  warning["message"] = "a loss\x1b[2J spike";
  run.add(warning);
  const std::vector<std::string> told = {
      "started on node7: 1,000,000 parameters, 4 ranks on 1 node, 50 steps",
      "{'loss': 2.0, 'learning_rate': 0.001, 'epoch': 0.5}", "saved out/checkpoint-7 (3.00 MiB in 1.5 s)",
      "warning: a loss\\x1b[2J spike"};
  EXPECT_EQ(run.take_news(), told);
  run.restart();
  EXPECT_FALSE(run.has_begun());
  for (const ordered_json& record : {start_line(1), log, checkpoint, warning}) run.add(record);
  EXPECT_THAT(run.take_news(), IsEmpty()) << "they were told before";
  ordered_json resume = event_line("resume", 5);
  resume["folder"] = "out/checkpoint-7";
  run.add(resume);
  EXPECT_THAT(run.take_news(), ElementsAre("resumed from out/checkpoint-7 after step 7"));
}

TEST(WatchedRun, EndsWithTheSummary) {
  WatchedRun run;
  run.add(start_line(1));
  EXPECT_FALSE(run.summary().has_value());
  ordered_json finish = event_line("finish", 9);
  finish.update(
      {{"step", 50},
       {"num_tokens", 51200},
       {"tokens_per_second", 512.4},
       {"tflops", 0.5},
       {"train_loss", 2.25},
       {"folder", "out"},
       {"best_eval_loss", 1.75},
       {"best_eval_step", 40},
       {"hint", "products take 80 % of the time: the processor is the limit"},
       {"times", {{"total_s", 120.0}, {"startup_s", 5.0}, {"steps_s", 100.0}, {"products_s", 80.0}}}});
  run.add(finish);
  EXPECT_TRUE(run.has_finished());
  const TrainSummary summary = run.summary().value();
  EXPECT_EQ(summary.times.total_s, 120);
  EXPECT_EQ(summary.times.steps.products_s, 80);
  EXPECT_EQ(summary.num_tokens, 51200);
  EXPECT_EQ(summary.num_steps, 50);
  EXPECT_EQ(summary.tokens_per_second, 512.4);
  EXPECT_EQ(summary.best_evaluation.value().loss, 1.75);
  EXPECT_EQ(summary.best_evaluation.value().step, 40);
  EXPECT_THAT(summary.hint, HasSubstr("products take 80 %"));
  EXPECT_EQ(summary.folder, "out");
  EXPECT_EQ(run.json(0)["state"], "finished");
  run.add(start_line(10));
  EXPECT_FALSE(run.has_finished()) << "it was started again";
}

// Another version, or another program that happens to write these files.
TEST(WatchedRun, BearsRecordsOfAnyKind) {
  WatchedRun run;
  for (const char* text :
       {"null", "[]", "3", R"({"step": "x"})", R"({"step": 1e300})", R"({"step": -1, "loss": []})",
        R"({"event": 3})", R"({"event": "start", "world_size": 1e99, "num_nodes": -2})",
        R"({"event": "log", "loss": {}, "epoch": "x"})", R"({"event": "finish", "times": 3})",
        R"({"event": "checkpoint", "bytes": 1e40})", R"({"step": 2, "loss": null})"}) {
    SCOPED_TRACE(text);
    run.add(ordered_json::parse(text));
    run.take_news();
    run.summary();
    run.json(0);
    run.progress(1);
  }
  EXPECT_EQ(run.progress(0).step, 2);
}

TEST(EventStream, SplitsEventsHoweverTheyArrive) {
  const std::string text =
      ": a comment\r\n\r\nevent: step\r\ndata: {\"a\":\r\ndata: 1}\r\nid: 4\r\n\r\ndata\n\nevent: "
      "none\n\ndata:x\n\n";
  for (size_t size = 1; size <= text.size(); ++size) {
    EventStream stream;
    std::vector<std::string> events;
    for (size_t begin = 0; begin < text.size(); begin += size) {
      stream.add(text.substr(begin, size), [&](const std::string& type, const std::string& data) {
        events.push_back(type + "=" + data);
      });
    }
    EXPECT_THAT(events, ElementsAre("step={\"a\":\n1}", "message=", "message=x")) << size;
  }
}

TEST(EventStream, RefusesAnEventWithoutEnd) {
  EventStream stream;
  expect_error(ExitCode::kBadData, {"expected at most"}, [&] {
    for (int i = 0; i < 20; ++i) stream.add("data: " + std::string(1 << 20, 'x') + "\n", {});
  });
}

class FolderSourceTest : public testing::Test {
 protected:
  void append(const std::string& name, const ordered_json& record) const {
    std::ofstream(folder_.path() / name, std::ios::app) << record.dump() << "\n";
  }

  TestFolder folder_;
  std::unique_ptr<RunSource> source_ = open_folder_source(folder_.path().string());
};

TEST_F(FolderSourceTest, WaitsForARunAndFollowsIt) {
  EXPECT_THAT(source_->poll().records, IsEmpty());
  EXPECT_THAT(source_->problem(), HasSubstr("no run has begun"));
  EXPECT_EQ(source_->updated(), 0);
  append("events.jsonl", start_line(1));
  append("metrics.jsonl", step_line(1));
  EXPECT_THAT(source_->poll().records, ElementsAre(start_line(1), step_line(1)));
  EXPECT_EQ(source_->problem(), "");
  EXPECT_GT(source_->updated(), 1e9);
  append("metrics.jsonl", step_line(2));
  EXPECT_THAT(source_->poll().records, ElementsAre(step_line(2)));
}

TEST_F(FolderSourceTest, ReadsAResumedRunAnew) {
  append("events.jsonl", start_line(1));
  for (int64_t i = 1; i <= 5; ++i) append("metrics.jsonl", step_line(i));
  source_->poll();
  std::filesystem::resize_file(folder_.path() / "metrics.jsonl", step_line(1).dump().size() + 1);
  append("metrics.jsonl", step_line(2, 1.5));
  append("events.jsonl", start_line(2));
  const RunSource::News news = source_->poll();
  EXPECT_TRUE(news.restarted);
  EXPECT_THAT(news.records, ElementsAre(start_line(1), start_line(2), step_line(1), step_line(2, 1.5)));
}

}  // namespace
}  // namespace tessera
