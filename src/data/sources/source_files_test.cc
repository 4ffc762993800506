#include "data/sources/source_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "expect_error.h"
#include "test_folder.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SourceFilesTest : public ::testing::Test {
 protected:
  void write(const std::vector<std::string>& names) {
    for (const char* folder : {"training", "eval", "data", "b"})
      std::filesystem::create_directory(folder_ / folder);
    for (const std::string& name : names) folder_.write(name, "{\"text\": \"a\"}\n");
  }
  // The files relative to the folder; what is left out goes to left_out_.
  std::vector<std::string> find(const std::vector<std::string>& splits = {"train"}) {
    const InputFiles found = find_source_files({folder_.path().string()}, splits);
    left_out_ = found.left_out;
    std::vector<std::string> names;
    for (const auto& file : found.files) names.push_back(file.lexically_relative(folder_.path()).string());
    return names;
  }

  TestFolder folder_;
  std::vector<std::string> left_out_;
};

TEST_F(SourceFilesTest, FolderIsReadAsItsSplit) {
  write({"train.jsonl", "test.jsonl", "dev-0.jsonl", "extra.jsonl"});
  EXPECT_THAT(find(), ElementsAre("train.jsonl"));
  EXPECT_THAT(left_out_,
              ElementsAre(HasSubstr(": reading the split train, not 1 file of the split validation, 1 file "
                                    "of the split test, 1 file of no split")));
  EXPECT_THAT(find({"validation", "test"}), ElementsAre("dev-0.jsonl"));
  EXPECT_THAT(find({"no", "test"}), ElementsAre("test.jsonl"));
}

TEST_F(SourceFilesTest, FoldersNameSplitsAndSoDoShards) {
  write({"training/a.jsonl", "eval/b.jsonl"});
  EXPECT_THAT(find(), ElementsAre("training/a.jsonl"));
  write({"data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"});
  EXPECT_THAT(find(), ElementsAre("data/train-00000-of-00001.parquet"));
}

TEST_F(SourceFilesTest, ReadmeNamesTheFilesOfSplits) {
  write({"a.jsonl", "b.jsonl"});
  folder_.write("README.md",
                "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: b.jsonl\n"
                "  - split: test\n    path: a.jsonl\n---\n");
  EXPECT_THAT(find(), ElementsAre("b.jsonl"));
  folder_.write(
      "README.md",
      "---\nconfigs:\n- config_name: en\n  data_files: a.jsonl\n- config_name: de\n  data_files: b.jsonl\n"
      "---\n");
  EXPECT_THAT(error_of([&] { find(); }).what(),
              HasSubstr("README.md names the configurations en, de: name the files"));
}

TEST_F(SourceFilesTest, FolderWithoutSplitsIsReadAsAWhole) {
  write({"a.jsonl", "b/c.jsonl"});
  EXPECT_THAT(find(), ElementsAre("a.jsonl", "b/c.jsonl"));
  EXPECT_THAT(left_out_, IsEmpty());
}

TEST_F(SourceFilesTest, FolderWithASingleSplitIsReadWhateverItsName) {
  write({"test-a.jsonl", "test-b.jsonl"});
  folder_.write("notes.md", "a");
  EXPECT_THAT(find(), ElementsAre("notes.md", "test-a.jsonl", "test-b.jsonl"));
}

TEST_F(SourceFilesTest, FolderWithoutTheSplitIsRefused) {
  write({"test.jsonl", "valid.jsonl"});
  const Error error = error_of([&] { find(); });
  EXPECT_EQ(error.code(), ExitCode::kBadConfig);
  EXPECT_THAT(error.what(),
              HasSubstr(": expected the split train, found validation (1 file), test (1 file) among 2 "
                        "files: name the files instead of the folder"));
  // Hugging Face's datasets would read test.jsonl only.
  TestFolder other;
  other.write("test.txt", "a");
  other.write("intro.txt", "a");
  EXPECT_THAT(error_of([&] { find_source_files({other.path().string()}, {"train"}); }).what(),
              HasSubstr("found test (1 file) among 2 files"));
}

TEST_F(SourceFilesTest, FilesThatAreNamedAreRead) {
  write({"train.jsonl", "test.jsonl"});
  EXPECT_EQ(find_source_files({(folder_.path() / "*.jsonl").string()}, {"train"}).files.size(), 2U);
}

}  // namespace
}  // namespace tessera
