#include "formats/input_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "expect_error.h"
#include "formats/file.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class InputFiles : public ::testing::Test {
 protected:
  InputFiles() {
    create_folder(folder_ / "sub/deep");
    for (const char* name : {"b.txt", "a.txt", "C.txt", "d.jsonl", "sub/z.h", "sub/deep/y.h", "sub/.hidden"})
      folder_.write(name, "x");
  }

  // Names relative to the folder.
  std::vector<std::string> expand(const std::vector<std::string>& patterns) const {
    std::vector<std::string> absolute;
    for (const std::string& pattern : patterns) absolute.push_back((folder_.path() / pattern).string());
    std::vector<std::string> names;
    for (const fs::path& file : expand_input_files(absolute))
      names.push_back(file.lexically_relative(folder_.path()).string());
    return names;
  }

  TestFolder folder_;
};

TEST_F(InputFiles, KeepTheOrderGivenAndSortWhatAPatternGives) {
  EXPECT_THAT(expand({"b.txt", "a.txt"}), ElementsAre("b.txt", "a.txt"));
  EXPECT_THAT(expand({"*.txt"}), ElementsAre("C.txt", "a.txt", "b.txt"));
  EXPECT_THAT(expand({"d.jsonl", "[ab].txt"}), ElementsAre("d.jsonl", "a.txt", "b.txt"));
  EXPECT_THAT(expand({"?.txt", "a.txt"}), ElementsAre("C.txt", "a.txt", "b.txt", "a.txt"));
}

TEST_F(InputFiles, OfAFolderAreAllRegularFilesBelowIt) {
  fs::create_symlink(folder_ / "a.txt", folder_ / "sub/link.h");
  fs::create_symlink(folder_ / "nowhere", folder_ / "sub/dangling.h");
  fs::create_directory_symlink(folder_.path(), folder_ / "sub/loop");
  EXPECT_THAT(expand({"sub"}), ElementsAre("sub/.hidden", "sub/deep/y.h", "sub/link.h", "sub/z.h"));
  EXPECT_THAT(expand({"s*"}), ElementsAre("sub/.hidden", "sub/deep/y.h", "sub/link.h", "sub/z.h"));
}

TEST_F(InputFiles, WithPatternCharactersInTheirNameAreTakenAsTheyAre) {
  folder_.write("odd [x] *.txt", "x");
  EXPECT_THAT(expand({"odd [x] *.txt"}), ElementsAre("odd [x] *.txt"));
}

TEST_F(InputFiles, ThatDoNotExistAreRefused) {
  const auto error = [this](const char* pattern) { return error_of([&] { expand({pattern}); }); };
  EXPECT_EQ(error("missing.txt").code(), ExitCode::kNoInput);
  EXPECT_THAT(error("missing.txt").what(), HasSubstr("missing.txt: cannot be read: No such file"));
  EXPECT_EQ(error("*.csv").code(), ExitCode::kNoInput);
  EXPECT_THAT(error("*.csv").what(), HasSubstr("*.csv: no file matches this pattern"));
  create_folder(folder_ / "empty");
  EXPECT_THAT(error("empty").what(), HasSubstr("no file below this folder"));
  EXPECT_EQ(error("**/*.txt").code(), ExitCode::kBadConfig);
  EXPECT_EQ(error_of([] { expand_input_files({}); }).code(), ExitCode::kBadConfig);
}

TEST_F(InputFiles, HaveTheirKindFromTheExtension) {
  EXPECT_EQ(input_kind("a.jsonl"), InputKind::kJson);
  EXPECT_EQ(input_kind("x/a.JSON"), InputKind::kJson);
  EXPECT_EQ(input_kind("a.ndjson"), InputKind::kJson);
  EXPECT_EQ(input_kind("a.SafeTensors"), InputKind::kPretokenized);
  EXPECT_EQ(input_kind("a.txt"), InputKind::kText);
  EXPECT_EQ(input_kind("json"), InputKind::kText);
  EXPECT_EQ(input_kind("a.json/README"), InputKind::kText);
}

}  // namespace
}  // namespace tessera
