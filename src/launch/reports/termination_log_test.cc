#include "launch/reports/termination_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/text.h"
#include "test_folder.h"

namespace tessera {
namespace {

class TerminationLog : public testing::Test {
 protected:
  void leave(std::string_view message, EarlierMessage earlier = EarlierMessage::kReplaced) const {
    leave_termination_message(message, earlier, [this](const std::string& name) {
      return name == kTerminationLogVariable ? std::optional(path_.string()) : std::nullopt;
    });
  }
  std::string text() const { return read_text_file(path_); }

  const TestFolder folder_;
  std::filesystem::path path_ = folder_ / "log";
};

TEST_F(TerminationLog, LastMessageStays) {
  leave("a rather long first message");
  leave("short");
  EXPECT_EQ(text(), "short\n");
  leave("third", EarlierMessage::kKept);
  EXPECT_EQ(text(), "short\n");
  write_text_file(path_, "");
  leave("third", EarlierMessage::kKept);
  EXPECT_EQ(text(), "third\n");
}

TEST_F(TerminationLog, KeepsTheFileThatIsMountedThere) {
  write_text_file(path_, "");
  struct stat before = {}, after = {};
  ASSERT_EQ(stat(path_.c_str(), &before), 0);
  leave("message");
  ASSERT_EQ(stat(path_.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
}

TEST_F(TerminationLog, IsOneLineOfCleanTextWithinTheLimit) {
  leave("exit code 65: bad \xFF\n byte");
  EXPECT_EQ(text(), "exit code 65: bad \\xff\\x0a byte\n");
  for (const std::string_view unit : {"x", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x9A\x80", "\x01"}) {
    std::string long_text = "abc"[unit.size() % 3] + std::string();
    while (long_text.size() < 3 * kMaxTerminationBytes) long_text += unit;
    leave(long_text);
    EXPECT_LE(text().size(), kMaxTerminationBytes);
    EXPECT_GT(text().size(), kMaxTerminationBytes - 8);
    EXPECT_TRUE(is_valid_utf8(text()));
    EXPECT_TRUE(text().ends_with("...\n"));
  }
}

TEST_F(TerminationLog, NothingElseThanAFileIsWritten) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  testing::internal::CaptureStderr();
  leave("nobody reads this pipe");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("cannot be written"));
  path_ = folder_ / "missing folder/log";
  testing::internal::CaptureStderr();
  leave("no folder");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("cannot be written"));
}

TEST(TerminationLogOfNoPod, IsNotCreated) {
  if (std::filesystem::exists(kTerminationLog)) GTEST_SKIP() << "these tests run in a pod";
  leave_termination_message("message", EarlierMessage::kReplaced,
                            [](const std::string&) { return std::nullopt; });
  EXPECT_FALSE(std::filesystem::exists(kTerminationLog));
}

}  // namespace
}  // namespace tessera
