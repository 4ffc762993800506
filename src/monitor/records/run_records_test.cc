#include "monitor/records/run_records.h"

#include <gmock/gmock.h>

#include <fstream>

#include "expect_error.h"
#include "monitor/records/page_html.h"
#include "monitor/records/run_report.h"
#include "test_folder.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

std::filesystem::path run_folder(const TestFolder& folder, const std::string& name,
                                 const std::string& metrics, const std::string& events) {
  const std::filesystem::path path = folder.path() / name;
  std::filesystem::create_directories(path);
  std::ofstream(path / "metrics.jsonl") << metrics;
  if (!events.empty()) std::ofstream(path / "events.jsonl") << events;
  return path;
}

constexpr char kTwoSteps[] =
    "{\"step\":1,\"loss\":3.5}\n{\"step\":2,\"loss\":3.25,\"rank_compute_s\":[1,3]}\n";

TEST(RunRecords, TellWhatTheEventsTold) {
  const TestFolder folder;
  const auto path = run_folder(folder, "run", kTwoSteps,
                               R"({"event":"start","max_steps":2,"arguments":{"seed":42}}
{"event":"log","step":1}
{"event":"evaluation","step":2,"eval_loss":3.0}
{"event":"checkpoint","step":2,"bytes":100,"write_s":0.5,"stall_s":0}
{"event":"warning","step":2,"message":"slow"}
{"event":"checkpoint_failed","step":2,"message":"disk full"}
{"event":"memory","measured":{"node_bytes":7}}
{"event":"something new","step":2}
{"event":"finish","step":2,"stop_signal":0}
)");
  const OrderedJson json = read_run_folder(path).json();
  EXPECT_EQ(json["start"]["arguments"]["seed"], 42);
  EXPECT_EQ(json["num_starts"], 1);
  EXPECT_EQ(json["evaluations"][0]["eval_loss"], 3.0);
  EXPECT_EQ(json["checkpoints"][0]["bytes"], 100);
  EXPECT_EQ(json["messages"][0]["level"], "warning");
  EXPECT_EQ(json["messages"][1]["level"], "error");
  EXPECT_EQ(json["memory"]["measured"]["node_bytes"], 7);
  EXPECT_EQ(json["finish"]["stop_signal"], 0);
  EXPECT_EQ(json["num_steps"], 2);
  EXPECT_EQ(json["ranks"]["last_s"], OrderedJson({1.0, 3.0}));
}

TEST(RunRecords, AnotherStartIsNotFinished) {
  RunRecords run;
  run.add_event({{"event", "start"}, {"max_steps", 5}});
  run.add_event({{"event", "finish"}});
  run.add_event({{"event", "start"}, {"max_steps", 9}});
  EXPECT_EQ(run.json()["num_starts"], 2);
  EXPECT_EQ(run.json()["start"]["max_steps"], 9);
  EXPECT_TRUE(run.json()["finish"].is_null());
}

TEST(RunRecords, KeepTheLastOfVeryManyEvents) {
  RunRecords run;
  for (int i = 0; i < 5000; ++i) run.add_event({{"event", "warning"}, {"step", i}, {"message", "again"}});
  const OrderedJson messages = run.json()["messages"];
  EXPECT_EQ(messages.size(), RunRecords::kMaxEvents);
  EXPECT_EQ(messages.back()["step"], 4999);
}

TEST(RunRecords, OfARunWithoutEventsComeFromItsOtherFiles) {
  const TestFolder folder;
  const auto path = run_folder(
      folder, "old",
      "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2,\"checkpoint_step\":1,\"checkpoint_bytes\":5,"
      "\"checkpoint_write_s\":1,\"checkpoint_stall_s\":0}\n",
      "");
  std::ofstream(path / "training_args.json") << R"({"learning_rate":0.5})";
  std::ofstream(path / "memory.json")
      << R"({"num_nodes":2,"local_world_size":4,"measured":{"node_bytes":9}})";
  std::ofstream(path / "trainer_state.json")
      << R"({"max_steps":2,"log_history":[{"step":2,"eval_loss":1.5},{"step":2,"train_runtime":12.5}]})";
  const OrderedJson json = read_run_folder(path).json();
  std::ofstream(path / "memory.json") << "[1]";
  EXPECT_TRUE(read_run_folder(path).json()["memory"].is_null());
  EXPECT_EQ(json["start"]["arguments"]["learning_rate"], 0.5);
  EXPECT_EQ(json["start"]["max_steps"], 2);
  EXPECT_EQ(json["start"]["world_size"], 8);
  EXPECT_EQ(json["memory"]["measured"]["node_bytes"], 9);
  EXPECT_EQ(json["evaluations"][0]["eval_loss"], 1.5);
  EXPECT_EQ(json["checkpoints"][0]["step"], 1);
  EXPECT_EQ(json["finish"]["runtime_s"], 12.5);
}

TEST(RunRecords, AnUnfinishedLastLineIsIgnored) {
  const TestFolder folder;
  const auto path =
      run_folder(folder, "run", std::string(kTwoSteps) + "{\"step\":3,\"lo", "{\"event\":\"sta");
  EXPECT_EQ(read_run_folder(path).steps().last_step(), 2);
}

TEST(RunRecords, UntilAStepLeaveOutWhatFollows) {
  const TestFolder folder;
  const auto path = run_folder(folder, "run", kTwoSteps,
                               "{\"event\":\"start\",\"step\":0}\n{\"event\":\"evaluation\",\"step\":2}\n");
  const RunRecords run = read_run_folder(path, 1);
  EXPECT_EQ(run.steps().last_step(), 1);
  EXPECT_TRUE(run.json()["evaluations"].empty());
  EXPECT_EQ(run.json()["num_starts"], 1);
}

TEST(RunRecords, DamageIsNamedWithFileAndLine) {
  const TestFolder folder;
  std::string many_ranks = "{\"step\":3,\"rank_compute_s\":[1";
  for (int rank = 1; rank < 70'000; ++rank) many_ranks += ",1";
  many_ranks += "]}";
  const struct {
    std::string line;
    const char* expected;
  } cases[] = {
      {"{\"step\":3,,}", "metrics.jsonl: line 3: column 11: "},
      {"nonsense", "metrics.jsonl: line 3: column "},
      {"{\"loss\":3}",
       "metrics.jsonl: line 3: expected an object with a field 'step', found an object with 1 field"},
      {"{\"step\":-1}", "metrics.jsonl: line 3: expected an object with a field 'step'"},
      {"{\"step\":1e300}", "metrics.jsonl: line 3: expected an object with a field 'step'"},
      {"{\"step\":18446744073709551615}", "metrics.jsonl: line 3: expected an object with a field 'step'"},
      {many_ranks, "metrics.jsonl: line 3: expected at most 65536 ranks, found 70000"},
      {"[1,2]", "metrics.jsonl: line 3: expected an object with a field 'step', found a list of 2"},
      {"\xff", "metrics.jsonl: line 3: column "},
  };
  for (const auto& [line, expected] : cases) {
    const auto path = run_folder(folder, "run", kTwoSteps + line + "\n{\"step\":4}\n", "");
    expect_error(ExitCode::kBadData, {expected}, [&] { read_run_folder(path); });
  }
  const auto path = run_folder(folder, "events", kTwoSteps, "{\"event\":7}\n");
  expect_error(ExitCode::kBadData, {"events.jsonl: line 1: expected an object with a text 'event'"},
               [&] { read_run_folder(path); });
}

TEST(RunRecords, VeryLongAndVeryDeepLinesAreRefused) {
  const TestFolder folder;
  const auto deep = run_folder(folder, "deep", std::string(1'000'000, '[') + "\n{\"step\":1}\n", "");
  expect_error(ExitCode::kBadData, {"metrics.jsonl: line 1: "}, [&] { read_run_folder(deep); });
  const auto longest = run_folder(folder, "long", "\"" + std::string(5 << 20, 'x') + "\"\n", "");
  expect_error(ExitCode::kBadData, {"line 1: expected at most 4194304 bytes, found more"},
               [&] { read_run_folder(longest); });
}

TEST(RunRecords, OfNoRunAreAnErrorThatSaysWhatIsExpected) {
  const TestFolder folder;
  expect_error(ExitCode::kNoInput, {"expected the output_dir of a training run, found no metrics.jsonl"},
               [&] { read_run_folder(folder.path()); });
}

TEST(RankHistory, MergesSpansAndKeepsMeans) {
  RankHistory history;
  EXPECT_TRUE(history.json().is_null());
  constexpr int kSteps = 1000;
  for (int step = 1; step <= kSteps; ++step)
    history.add(step, std::vector<double>{1, step > 500 ? 3.0 : 2.0});
  const OrderedJson json = history.json();
  const size_t num_spans = json["first_step"].size();
  EXPECT_LE(num_spans, static_cast<size_t>(RankHistory::kMaxSpans));
  EXPECT_GE(num_spans, 20u);
  EXPECT_EQ(json["first_step"][0], 1);
  EXPECT_EQ(json["compute_s"].size(), num_spans);
  EXPECT_EQ(json["compute_s"][0], OrderedJson({1.0, 2.0}));
  EXPECT_EQ(json["compute_s"].back(), OrderedJson({1.0, 3.0}));
}

TEST(RankHistory, StartsOverWithAnotherNumberOfRanks) {
  RankHistory history;
  history.add(1, std::vector<double>{1, 2});
  history.add(2, std::vector<double>{1, 2, 3});
  EXPECT_EQ(history.json()["first_step"], OrderedJson({2}));
}

TEST(RunReport, NamesRunsByAsManyFoldersAsTellThemApart) {
  const TestFolder folder;
  const auto a = run_folder(folder, "a/model", kTwoSteps, "");
  const auto b = run_folder(folder, "b/model", kTwoSteps, "");
  const OrderedJson report = run_report({a, b / "."});
  EXPECT_EQ(report["runs"][0]["name"], "a/model");
  EXPECT_EQ(report["runs"][1]["name"], "b/model");
  EXPECT_EQ(run_report({a})["runs"][0]["name"], "model");
  EXPECT_GT(report["runs"][0]["updated"].get<double>(), 1e9);
  expect_error(ExitCode::kUsage, {"this run was given twice"}, [&] { run_report({a, a}); });
}

TEST(PageHtml, TextInDataCannotEndItsElement) {
  if (!has_page()) GTEST_SKIP() << "built without npm: there is no page";
  const std::string page = report_page({{"runs", {{{"name", "</script><script>alert(1)</script>\xff"}}}}});
  EXPECT_THAT(page, HasSubstr("\\u003c/script>\\u003cscript>alert(1)"));
  EXPECT_THAT(page, Not(HasSubstr("<script>alert(1)")));
  EXPECT_THAT(page, HasSubstr("Permission is hereby granted, free of charge")) << "the licence of uPlot";
  EXPECT_THAT(live_page(), Not(HasSubstr("application/json")));
  EXPECT_THAT(page_security_policy(), Not(HasSubstr("unsafe")));
}

TEST(PageHtml, ABuildWithoutItSaysHowToGetIt) {
  if (has_page()) GTEST_SKIP() << "this build has the page";
  expect_error(ExitCode::kBadConfig, {"install nodejs and npm"}, [] { check_page("tessera report"); });
}

}  // namespace
}  // namespace tessera
