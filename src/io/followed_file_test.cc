#include "io/followed_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "expect_error.h"
#include "test_folder.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class FollowedFileTest : public testing::Test {
 protected:
  void append(const std::string& text) const { std::ofstream(path_, std::ios::app) << text; }
  void replace(const std::string& text) const {
    const std::filesystem::path other = folder_.path() / "other";
    std::ofstream(other) << text;
    std::filesystem::rename(other, path_);
  }

  TestFolder folder_;
  std::filesystem::path path_ = folder_.path() / "lines";
};

TEST_F(FollowedFileTest, GivesCompleteLinesOnce) {
  FollowedFile file(path_);
  EXPECT_THAT(file.read_news().lines, IsEmpty());
  EXPECT_FALSE(file.is_there());
  append("one\ntw");
  FollowedFile::News news = file.read_news();
  EXPECT_THAT(news.lines, ElementsAre("one"));
  EXPECT_FALSE(news.restarted) << "it was not there before";
  EXPECT_TRUE(file.is_there());
  EXPECT_GT(file.modified(), 1e9);
  EXPECT_THAT(file.read_news().lines, IsEmpty());
  append("o\n\nthree\n");
  EXPECT_THAT(file.read_news().lines, ElementsAre("two", "", "three"));
}

TEST_F(FollowedFileTest, SeesThatTheFileWasCut) {
  FollowedFile file(path_);
  append("one\ntwo\nthree\n");
  file.read_news();
  std::filesystem::resize_file(path_, 4);
  FollowedFile::News news = file.read_news();
  EXPECT_TRUE(news.restarted);
  EXPECT_THAT(news.lines, ElementsAre("one"));
  append("2\n3\n");
  news = file.read_news();
  EXPECT_FALSE(news.restarted);
  EXPECT_THAT(news.lines, ElementsAre("2", "3"));
}

TEST_F(FollowedFileTest, SeesThatTheFileWasCutAndHasGrownSince) {
  FollowedFile file(path_);
  append("one\ntwo\nthree\n");
  file.read_news();
  std::filesystem::resize_file(path_, 4);
  append("a longer line than before\n");
  const FollowedFile::News news = file.read_news();
  EXPECT_TRUE(news.restarted);
  EXPECT_THAT(news.lines, ElementsAre("one", "a longer line than before"));
}

TEST_F(FollowedFileTest, BeginsAnewIfAsked) {
  FollowedFile file(path_);
  append("one\n");
  file.read_news();
  file.rewind();
  append("two\n");
  const FollowedFile::News news = file.read_news();
  EXPECT_TRUE(news.restarted);
  EXPECT_THAT(news.lines, ElementsAre("one", "two"));
  EXPECT_FALSE(file.read_news().restarted);
}

TEST_F(FollowedFileTest, FollowsTheNameToAnotherFile) {
  FollowedFile file(path_);
  append("one\n");
  file.read_news();
  replace("one\nmore\n");
  FollowedFile::News news = file.read_news();
  EXPECT_TRUE(news.restarted);
  EXPECT_THAT(news.lines, ElementsAre("one", "more"));
  std::filesystem::remove(path_);
  EXPECT_TRUE(file.read_news().restarted);
  EXPECT_FALSE(file.is_there());
  EXPECT_FALSE(file.read_news().restarted);
  append("new\n");
  EXPECT_THAT(file.read_news().lines, ElementsAre("new"));
}

TEST_F(FollowedFileTest, BeginsWithTheLastLinesOfALargeFile) {
  std::string text;
  for (int i = 0; i < 10000; ++i) text += std::to_string(i) + "\n";
  append(text);
  FollowedFile file(path_, 13);  // "7\n9998\n9999\n" and a bit
  EXPECT_THAT(file.read_news().lines, ElementsAre("9998", "9999"));
  append("10000\n");
  EXPECT_THAT(file.read_news().lines, ElementsAre("10000"));
  FollowedFile all(path_);
  EXPECT_EQ(all.read_news().lines.size(), 10001u);
}

TEST_F(FollowedFileTest, ALineWithoutEndIsRefused) {
  append("one\n" + std::string((16 << 20) + 10, 'x'));
  FollowedFile file(path_);
  expect_error(ExitCode::kBadData, {path_.string(), "expected lines, found one of more than"},
               [&] { file.read_news(); });
}

}  // namespace
}  // namespace tessera
