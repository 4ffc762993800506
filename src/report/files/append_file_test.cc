#include "report/files/append_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "io/file.h"
#include "report/files/line_file.h"
#include "support/file_size_limit.h"
#include "test_folder.h"

namespace tessera {
namespace {

TEST(AppendFile, KeepsTheBeginningThatItIsToldTo) {
  const TestFolder folder;
  folder.write("file", "0123456789");
  AppendFile(folder / "file", 100).append("ab");
  EXPECT_EQ(read_text_file(folder / "file"), "0123456789ab");
  AppendFile(folder / "file", 4).append("cd");
  EXPECT_EQ(read_text_file(folder / "file"), "0123cd");
  AppendFile(folder / "file", 0).append("");
  EXPECT_EQ(read_text_file(folder / "file"), "");
  expect_error(ExitCode::kIoError, {"cannot write", "none/file"}, [&] { AppendFile(folder / "none/file"); });
}

TEST(AppendFile, TellsWhyARecordWasLeftOut) {
  const TestFolder folder;
  AppendFile file(folder / "file");
  const FileSizeLimit disk;
  disk.set(7);
  EXPECT_EQ(file.try_append("12345"), 0);
  EXPECT_EQ(file.try_append("678"), EFBIG);
  EXPECT_EQ(file.try_append("67"), 0);
  disk.lift();
  EXPECT_EQ(read_text_file(folder / "file"), "1234567");
}

TEST(AppendFile, GoesOnInANewFileIfItIsRemovedOrReplaced) {
  const TestFolder folder;
  AppendFile file(folder / "file");
  file.append("lost");
  std::filesystem::remove(folder / "file");
  testing::internal::CaptureStderr();
  file.append("1");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("file was removed or renamed"));
  file.append("2");
  EXPECT_EQ(read_text_file(folder / "file"), "12");
  std::filesystem::rename(folder / "file", folder / "older");
  folder.write("file", "theirs ");
  testing::internal::CaptureStderr();
  file.append("3");
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(read_text_file(folder / "file"), "theirs 3");
  EXPECT_EQ(read_text_file(folder / "older"), "12");
}

TEST(LineFile, ALineThatDoesNotFitIsLeftOutAsAWhole) {
  const TestFolder folder;
  LineFile file(folder / "lines");
  file.write(std::string(1000, '1'));  // longer than what is said below
  testing::internal::CaptureStderr();
  {
    const FileSizeLimit disk;
    disk.set(1005);
    for (int i = 0; i < 2; ++i) file.write("torn and lost");
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, testing::HasSubstr("lines: File too large; training continues"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  file.write("whole");
  EXPECT_EQ(read_text_file(folder / "lines"), std::string(1000, '1') + "\nwhole\n");
}

}  // namespace
}  // namespace tessera
