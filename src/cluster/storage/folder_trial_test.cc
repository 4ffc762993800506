#include "cluster/storage/folder_trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/clock.h"
#include "test_folder.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST(ChildTrial, ReportsArriveWithTheirStage) {
  const TrialReport report = run_in_child(
      [](const TrialReporter& reporter) {
        reporter.stage("one");
        reporter.number("half", 0.5);
        reporter.text("words", "a\tb\nc");
        reporter.stage("two");
      },
      10);
  EXPECT_TRUE(report.is_complete);
  EXPECT_FALSE(report.timed_out);
  EXPECT_EQ(report.last_stage, "two");
  EXPECT_EQ(report.number("half"), 0.5);
  EXPECT_EQ(report.number("absent"), std::nullopt);
  EXPECT_EQ(report.text("words"), "a\\x09b\\x0ac");
}

TEST(ChildTrial, HungChildIsLeftAtTheDeadlineWithItsStage) {
  const Stopwatch stopwatch;
  const TrialReport report = run_in_child(
      [](const TrialReporter& reporter) {
        reporter.stage("statfs");
        for (;;) pause();
      },
      0.2);
  EXPECT_TRUE(report.timed_out);
  EXPECT_FALSE(report.is_complete);
  EXPECT_EQ(report.last_stage, "statfs");
  EXPECT_LT(stopwatch.seconds(), 3);
}

TEST(ChildTrial, DeadChildIsNoTimeout) {
  const TrialReport report = run_in_child([](const TrialReporter&) { _exit(3); }, 10);
  EXPECT_FALSE(report.timed_out);
  EXPECT_FALSE(report.is_complete);
}

TEST(ChildTrial, ExceptionsAreReported) {
  const TrialReport report =
      run_in_child([](const TrialReporter&) { throw std::runtime_error("no such luck"); }, 10);
  EXPECT_TRUE(report.is_complete);
  EXPECT_EQ(report.text("error"), "no such luck");
}

TEST(FolderTrial, SoundFolderPassesEveryStageAndIsLeftEmpty) {
  const TestFolder folder;
  const TrialReport report = try_folder(folder.path(), {.max_bytes = 12 << 20, .seconds = 20});
  EXPECT_TRUE(report.is_complete);
  EXPECT_EQ(report.text("error"), "");
  EXPECT_EQ(report.text("wrong"), "");
  EXPECT_EQ(report.text("rename_error"), "");
  EXPECT_EQ(report.text("lock_error"), "");
  EXPECT_EQ(report.number("written_bytes"), 12 << 20);
  for (const char* name : {"write_mb_per_s", "read_mb_per_s", "fsync_ms", "free_bytes", "total_bytes"}) {
    EXPECT_GT(report.number(name).value_or(0), 0) << name;
  }
  EXPECT_EQ(folder.names(), std::set<std::string>{});
}

TEST(FolderTrial, MissingFolderAndAFileFail) {
  const TestFolder folder;
  const TrialReport missing = try_folder(folder / "none", {.seconds = 10});
  EXPECT_EQ(missing.last_stage, "resolve");
  EXPECT_THAT(missing.text("error"), HasSubstr("No such file or directory"));
  const TrialReport file = try_folder(folder.write("file", "x"), {.seconds = 10});
  EXPECT_EQ(file.last_stage, "create");
  EXPECT_THAT(file.text("error"), HasSubstr("Not a directory"));
}

}  // namespace
}  // namespace tessera
