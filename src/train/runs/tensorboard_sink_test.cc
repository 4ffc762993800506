// Reads event files with a reader that is independent of the writer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "io/file.h"
#include "report/sinks/event_file.h"
#include "report/sinks/tensorboard_sink.h"
#include "support/file_size_limit.h"
#include "support/train/event_reader.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::StartsWith;

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

fs::path only_path_in(const fs::path& folder) {
  const std::vector<fs::path> folders = files_in(folder);
  EXPECT_EQ(folders.size(), 1u);
  return folders.at(0);
}

std::vector<TestEvent> events_in(const fs::path& folder) {
  std::vector<TestEvent> events;
  for (const fs::path& file : files_in(folder)) {
    for (TestEvent& event : read_event_file(file)) events.push_back(std::move(event));
  }
  return events;
}

TEST(EventFile, IsReadBackRecordByRecord) {
  const TestFolder folder;
  EventFile file(folder / "logs");
  file.add_scalar("train/loss", 2.5, 7);
  file.add_scalar("a", -1e-30, int64_t{1} << 40);
  file.add_scalar("nan", std::nan(""), 0);
  file.add_text("args", "{\"x\": \"\xc3\xa4\"}", 3);
  const fs::path path = only_path_in(folder / "logs");
  EXPECT_EQ(read_event_file(path).size(), 1u);
  file.flush();

  EXPECT_THAT(path.filename().string(),
              testing::MatchesRegex("events\\.out\\.tfevents\\.[0-9]{10}\\..+\\.[0-9]+\\.0"));
  const std::vector<TestEvent> events = read_event_file(path);
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_NEAR(events[0].wall_time, static_cast<double>(std::time(nullptr)), 60);
  EXPECT_EQ(events[1].tag, "train/loss");
  EXPECT_EQ(events[1].value, 2.5f);
  EXPECT_EQ(events[1].step, 7);
  EXPECT_EQ(events[2].value, -1e-30f);
  EXPECT_EQ(events[2].step, int64_t{1} << 40);
  EXPECT_TRUE(std::isnan(*events[3].value));
  EXPECT_EQ(events[4].tag, "args/text_summary");
  EXPECT_EQ(events[4].plugin, "text");
  EXPECT_EQ(events[4].text, "{\"x\": \"\xc3\xa4\"}");
  EXPECT_EQ(events[4].step, 3);
  for (const TestEvent& event : events) EXPECT_FALSE(event.starts_session);
}

TEST(EventFile, TakesTextsOfAnyLength) {
  const TestFolder folder;
  EventFile file(folder.path());
  for (const size_t length : {0, 1, 127, 128, 16383, 16384, 300000})
    file.add_text("t", std::string(length, 'x'), 0);
  file.flush();
  std::vector<size_t> lengths;
  for (const TestEvent& event : events_in(folder.path())) {
    if (event.text) lengths.push_back(event.text->size());
  }
  EXPECT_THAT(lengths, ElementsAre(0, 1, 127, 128, 16383, 16384, 300000));
}

TEST(EventFile, FilesOfOneSecondHaveNamesOfTheirOwnInOrder) {
  const TestFolder folder;
  for (int i = 0; i < 3; ++i) EventFile(folder.path()).add_scalar("x", i, i);
  EXPECT_EQ(files_in(folder.path()).size(), 3u);
}

TEST(EventFile, AFolderThatCannotBeWrittenIsNamed) {
  const TestFolder folder;
  folder.write("logs", "a file");
  expect_error(ExitCode::kIoError, {"logs"}, [&] { EventFile file(folder / "logs"); });
}

// Records that do not fit are left out entirely; those after them are readable again.
TEST(EventFile, AFullDiskCostsRecordsAndNothingElse) {
  const TestFolder folder;
  EventFile file(folder.path());
  file.add_text("long", std::string(4000, 'x'), 0);  // longer than what is said below
  file.flush();
  testing::internal::CaptureStderr();
  {
    const FileSizeLimit disk;
    disk.set(fs::file_size(only_path_in(folder.path())) + 20);
    for (int64_t step = 1; step <= 3; ++step) {
      file.add_scalar("x", 1, step);
      file.flush();
    }
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, testing::HasSubstr("File too large; training continues"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  file.add_scalar("x", 4, 4);
  file.flush();
  const std::vector<TestEvent> events = events_in(folder.path());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2].step, 4);
}

// Tag -> step -> value of the scalars that TensorBoard shows: a session that starts discards what came after.
std::map<std::string, std::map<int64_t, float>> shown(const std::vector<TestEvent>& events) {
  std::map<std::string, std::map<int64_t, float>> scalars;
  for (const TestEvent& event : events) {
    if (event.starts_session) {
      for (auto& [tag, steps] : scalars) steps.erase(steps.lower_bound(event.step), steps.end());
    }
    if (event.value) scalars[event.tag][event.step] = *event.value;
  }
  return scalars;
}

void expect_log_history(const fs::path& output,
                        const std::map<std::string, std::map<int64_t, float>>& scalars) {
  size_t num_values = 0;
  const nlohmann::json state = read_json(output / "trainer_state.json");
  for (const nlohmann::json& entry : state.at("log_history")) {
    for (const auto& [name, value] : entry.items()) {
      if (name == "step") continue;
      const std::string tag = name.starts_with("eval_") ? "eval/" + name.substr(5) : "train/" + name;
      ASSERT_TRUE(scalars.contains(tag)) << tag;
      ASSERT_TRUE(scalars.at(tag).contains(entry.at("step"))) << tag << " " << entry;
      EXPECT_EQ(scalars.at(tag).at(entry.at("step")), value.get<float>()) << tag;
      ++num_values;
    }
  }
  EXPECT_GT(num_values, 10u);
}

void report_and_evaluate(RunSettings* spec) {
  spec->reporting.report_to = {ReportTo::kTensorboard};
  spec->reporting.logging_steps = 1;
  spec->data.eval_dataset = spec->data.dataset;
  spec->evaluation.strategy = IntervalStrategy::kSteps;
  spec->evaluation.steps = 3;
}

TEST(TensorBoardSink, HasTheValuesOfTheLogUnderHuggingFacesTags) {
  TinyRun run;
  report_and_evaluate(&run.spec);
  run.train();
  const fs::path folder = only_path_in(run.output() / "runs");
  const std::vector<TestEvent> events = events_in(folder);
  const auto scalars = shown(events);
  expect_log_history(run.output(), scalars);
  for (const char* tag : {"train/loss", "train/grad_norm", "train/learning_rate", "train/epoch", "eval/loss",
                          "eval/runtime", "train/train_runtime", "train/total_flos", "train/train_loss"}) {
    EXPECT_TRUE(scalars.contains(tag)) << tag;
  }
  for (const nlohmann::json& line : read_json_lines(run.output() / "metrics.jsonl")) {
    for (const char* name : {"tokens_per_second", "step_time_s", "tflops"}) {
      EXPECT_EQ(scalars.at(std::string("throughput/") + name).at(line.at("step")),
                line.at(name).get<float>());
    }
    for (const char* name :
         {"rows_s", "products_s", "attention_s", "elementwise_s", "wait_s", "optimizer_s", "other_s"}) {
      EXPECT_EQ(scalars.at(std::string("times/") + name).at(line.at("step")),
                line.at(std::string("time_") + name).get<float>());
    }
    EXPECT_EQ(scalars.at("train/loss").at(line.at("step")), line.at("loss").get<float>());
  }
  std::map<std::string, std::string> texts;
  for (const TestEvent& event : events) {
    if (event.text) texts[event.tag] = *event.text;
  }
  EXPECT_EQ(texts["args/text_summary"], read_text_file(run.output() / "training_args.json"));
  EXPECT_EQ(nlohmann::json::parse(texts["model_config/text_summary"]).at("vocab_size"), 13);
}

TEST(TensorBoardSink, AResumedRunContinuesInItsFolderAndPurgesWhatIsRepeated) {
  TinyRun run;
  report_and_evaluate(&run.spec);
  run.spec.saving.strategy = SaveStrategy::kSteps;
  run.spec.saving.steps = 2;
  run.spec.saving.in_background = false;
  run.train_and_die_after(5);
  run.spec.resume = parse_resume("true");
  run.train();
  const fs::path folder = only_path_in(run.output() / "runs");
  EXPECT_EQ(files_in(folder).size(), 2u);
  const std::vector<TestEvent> events = events_in(folder);
  EXPECT_EQ(std::ranges::count_if(events, &TestEvent::starts_session), 1);
  const auto session = std::ranges::find_if(events, &TestEvent::starts_session);
  EXPECT_EQ(session->step, 5);
  expect_log_history(run.output(), shown(events));
}

TEST(TensorBoardSink, LoggingDirAndItsVariableDecideTheFolder) {
  EXPECT_EQ(tensorboard_folder("mine", "variable", "out", false), "mine");
  EXPECT_EQ(tensorboard_folder("", "variable", "out", true), "variable");
  const TestFolder folder;
  const fs::path dated = tensorboard_folder("", "", folder.path(), true);
  EXPECT_THAT(dated.string(),
              testing::MatchesRegex(".*/runs/[A-Z][a-z]{2}[0-9]{2}_[0-9]{2}-[0-9]{2}-[0-9]{2}_.+"));
  create_folder(folder / "runs/old");
  create_folder(folder / "runs/new");
  fs::last_write_time(folder / "runs/old", fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(tensorboard_folder("", "", folder.path(), true), folder / "runs/new");
  EXPECT_EQ(tensorboard_folder("", "", folder.path(), false).parent_path(), folder / "runs");
}

}  // namespace
}  // namespace tessera
