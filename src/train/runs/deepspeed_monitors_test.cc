// The files of DeepSpeed's monitors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "io/file.h"
#include "report/sinks/deepspeed_monitors.h"
#include "support/file_size_limit.h"
#include "support/train/event_reader.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLr = "Train/Samples/lr";

std::string csv_of_metrics(const fs::path& output, const std::string& column, const std::string& metric) {
  std::string text = "step," + column + "\n";
  for (const nlohmann::json& line : read_json_lines(output / "metrics.jsonl"))
    text += fmt::format("{},{}\n", line.at("step").get<int64_t>() * 4, line.at(metric).get<double>());
  return text;
}

TEST(CsvFolder, HasAFilePerNameWithAHeader) {
  const TestFolder folder;
  CsvFolder csv(folder / "a/b", {});
  csv.write(kLr, 1e-05, 32);
  csv.write("Train/Samples/train_loss", std::nan(""), 32);
  csv.write(kLr, 0.25, 64);
  EXPECT_EQ(read_text_file(folder / "a/b/Train_Samples_lr.csv"), "step,lr\n32,1e-05\n64,0.25\n");
  EXPECT_EQ(read_text_file(folder / "a/b/Train_Samples_train_loss.csv"), "step,train_loss\n32,nan\n");
}

TEST(CsvFolder, ANewRunAddsToTheFilesOfAnEarlierOne) {
  const TestFolder folder;
  for (const double rate : {0.5, 0.25}) CsvFolder(folder.path(), {}).write(kLr, rate, 8);
  EXPECT_EQ(read_text_file(folder / "Train_Samples_lr.csv"), "step,lr\n8,0.5\nstep,lr\n8,0.25\n");
}

TEST(CsvFolder, AResumedRunReplacesTheRowsThatItRepeats) {
  const std::string file = "Train_Samples_lr.csv";
  const auto resumed = [&](const std::string& text) {
    const TestFolder folder;
    if (!text.empty()) folder.write(file, text);
    CsvFolder(folder.path(), 16).write(kLr, 0.5, 24);
    return read_text_file(folder / file);
  };
  EXPECT_EQ(resumed("step,lr\n8,1\n16,2\n24,3\n32,4\n"), "step,lr\n8,1\n16,2\n24,0.5\n");
  EXPECT_EQ(resumed("step,lr\n8,1\n16,2\n24"), "step,lr\n8,1\n16,2\n24,0.5\n") << "a torn row";
  EXPECT_EQ(resumed("step,lr\n99,1\nstep,lr\n8,1\n32,2\n"), "step,lr\n99,1\nstep,lr\n8,1\n24,0.5\n")
      << "an earlier run";
  EXPECT_EQ(resumed("notes\n"), "notes\nstep,lr\n24,0.5\n");
  EXPECT_EQ(resumed(""), "step,lr\n24,0.5\n");
}

TEST(CsvFolder, WhatCannotBeWrittenIsOneWarning) {
  const TestFolder folder;
  create_folder(folder / "Train_Samples_lr.csv");
  CsvFolder csv(folder.path(), {});
  testing::internal::CaptureStderr();
  for (int64_t step = 0; step < 3; ++step) csv.write(kLr, 1, step);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, testing::HasSubstr("Train_Samples_lr.csv: Is a directory; training continues"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  folder.write("file", "");
  expect_error(ExitCode::kIoError, {"file"}, [&] { CsvFolder in_file(folder / "file", {}); });
}

TEST(DeepSpeedMonitors, WriteEveryStepOverTheRowsSoFar) {
  TinyRun run;
  run.spec.reporting.report_to = {ReportTo::kCsv};
  run.spec.data.eval_dataset = run.spec.data.dataset;
  run.spec.evaluation.strategy = IntervalStrategy::kSteps;
  run.spec.evaluation.steps = 3;
  run.train();
  const fs::path folder = run.output() / "csv_monitor";
  for (const auto& [column, metric] :
       std::map<std::string, std::string>{{"train_loss", "loss"},
                                          {"lr", "learning_rate"},
                                          {"grad_norm", "grad_norm"},
                                          {"tokens_per_second", "tokens_per_second"}}) {
    EXPECT_EQ(read_text_file(folder / ("Train_Samples_" + column + ".csv")),
              csv_of_metrics(run.output(), column, metric));
  }
  EXPECT_THAT(read_text_file(folder / "Train_Samples_eval_loss.csv"),
              testing::MatchesRegex("step,eval_loss\n12,[0-9.]+\n24,[0-9.]+\n"));
  run.train();
  EXPECT_TRUE(fs::exists(run.output() / "previous-1/csv_monitor/Train_Samples_lr.csv"));
  EXPECT_EQ(read_text_file(folder / "Train_Samples_lr.csv"),
            csv_of_metrics(run.output(), "lr", "learning_rate"));
}

TEST(DeepSpeedMonitors, AFileOfDeepSpeedTurnsThemOn) {
  TinyRun run;
  const fs::path tensorboard = run.folder() / "tb/job", csv = run.folder() / "csv/job";
  run.spec.reporting.monitor_tensorboard_dir = tensorboard.string();
  run.spec.reporting.monitor_csv_dir = csv.string();
  run.spec.saving.strategy = SaveStrategy::kSteps;
  run.spec.saving.steps = 2;
  run.spec.saving.in_background = false;
  run.train_and_die_after(5);
  run.spec.resume = parse_resume("true");
  run.train();
  EXPECT_EQ(read_text_file(csv / "Train_Samples_train_loss.csv"),
            csv_of_metrics(run.output(), "train_loss", "loss"));
  EXPECT_FALSE(fs::exists(run.output() / "csv_monitor"));
  EXPECT_FALSE(fs::exists(run.output() / "runs"));

  std::map<int64_t, float> losses;
  int64_t num_sessions = 0;
  for (const auto& entry : fs::directory_iterator(tensorboard)) {
    for (const TestEvent& event : read_event_file(entry.path())) {
      if (event.tag == "Train/Samples/train_loss") losses[event.step] = *event.value;
      if (!event.starts_session) continue;
      ++num_sessions;
      EXPECT_EQ(event.step, 17);  // after four steps of four rows
    }
  }
  EXPECT_EQ(num_sessions, 1);
  const auto lines = read_json_lines(run.output() / "metrics.jsonl");
  ASSERT_EQ(losses.size(), lines.size());
  for (const nlohmann::json& line : lines)
    EXPECT_EQ(losses.at(line.at("step").get<int64_t>() * 4), line.at("loss").get<float>());
}

}  // namespace
}  // namespace tessera
