#include "formats/input_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "expect_error.h"
#include "io/file.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class InputFiles : public ::testing::Test {
 protected:
  InputFiles() {
    create_folder(folder_ / "sub/deep");
    for (const char* name :
         {"b.txt", "a.txt", "C.txt", "d.jsonl", "sub/z.txt", "sub/deep/y.MD", "sub/deep/z.h"})
      folder_.write(name, "x");
  }

  // Names relative to the folder.
  std::vector<std::string> expand(const std::vector<std::string>& patterns,
                                  InputUse use = InputUse::kDataset) {
    std::vector<std::string> absolute;
    for (const std::string& pattern : patterns) absolute.push_back((folder_.path() / pattern).string());
    const auto found = find_input_files(absolute, use);
    left_out_ = found.left_out;
    std::vector<std::string> names;
    for (const fs::path& file : found.files)
      names.push_back(file.lexically_normal().lexically_relative(folder_.path()).string());
    return names;
  }

  Error error(const std::string& pattern, InputUse use = InputUse::kDataset) {
    return error_of([&] { expand({pattern}, use); });
  }

  // The message about a file with this content, without the file's name; "" if it is accepted.
  std::string content_error(const std::string& content, const char* name = "content",
                            InputUse use = InputUse::kDataset, bool skip_invalid_utf8 = false) {
    const fs::path path = folder_.write(name, content);
    try {
      check_input_content(InputFile::open(path), use, skip_invalid_utf8);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      return std::string(error.what()).substr(path.string().size());
    }
    return "";
  }

  TestFolder folder_;
  std::vector<std::string> left_out_;  // from the last expand()
};

TEST_F(InputFiles, KeepTheOrderGivenAndSortWhatAPatternGives) {
  EXPECT_THAT(expand({"b.txt", "a.txt"}), ElementsAre("b.txt", "a.txt"));
  EXPECT_THAT(expand({"*.txt"}), ElementsAre("C.txt", "a.txt", "b.txt"));
  EXPECT_THAT(expand({"d.jsonl", "[ab].txt"}), ElementsAre("d.jsonl", "a.txt", "b.txt"));
  EXPECT_THAT(expand({"?.txt", "a.txt"}), ElementsAre("C.txt", "a.txt", "b.txt", "a.txt"));
}

TEST_F(InputFiles, OfAFolderAreThoseOfAKnownFormatThatAreNotHidden) {
  create_folder(folder_ / "sub/.git");
  for (const char* name : {"sub/.env", "sub/.notes.txt", "sub/.git/config.txt", "sub/a.xlsx", "sub/b.png",
                           "sub/Makefile", "sub/README.md", "sub/deep/dataset_info.json", "sub/c.safetensors",
                           "sub/d.csv.gz", "sub/e.parquet", "sub/f.parquet.zst"})
    folder_.write(name, "x");
  fs::create_symlink(folder_ / "a.txt", folder_ / "sub/link.txt");
  fs::create_symlink(folder_ / "nowhere", folder_ / "sub/dangling.txt");
  fs::create_directory_symlink(folder_.path(), folder_ / "sub/loop");
  const auto files = ElementsAre("sub/c.safetensors", "sub/d.csv.gz", "sub/deep/y.MD", "sub/e.parquet",
                                 "sub/link.txt", "sub/z.txt");
  EXPECT_THAT(expand({"sub"}), files);
  EXPECT_THAT(
      left_out_,
      ElementsAre(
          (folder_.path() / "sub").string() +
          ": skipped 9 files: 2 hidden, 7 of other kinds (.h, .parquet, .png, .xlsx, README.md, "
          "dataset_info.json, without extension) and 1 hidden folder and 2 links to a folder or to nothing; "
          ".xlsx: convert it to .parquet, .csv or .jsonl, an object such as {\"text\": \"...\"} per line"));
  EXPECT_THAT(expand({"s*"}), files);
  EXPECT_THAT(expand({"sub"}, InputUse::kPlainText),
              ElementsAre("sub/deep/y.MD", "sub/link.txt", "sub/z.txt"));
}

TEST_F(InputFiles, OfAFolderWithNothingElseAreNotMentionedAsLeftOut) {
  EXPECT_THAT(expand({"."}), ElementsAre("C.txt", "a.txt", "b.txt", "d.jsonl", "sub/deep/y.MD", "sub/z.txt"));
  EXPECT_THAT(left_out_, ElementsAre(HasSubstr("skipped 1 file: 1 of other kinds (.h)")));
  fs::remove(folder_ / "sub/deep/z.h");
  create_folder(folder_ / "sub/.git");
  expand({"."});
  EXPECT_THAT(left_out_, ElementsAre(EndsWith(": skipped 1 hidden folder")));
  fs::remove(folder_ / "sub/.git");
  expand({"."});
  EXPECT_THAT(left_out_, IsEmpty());
}

TEST_F(InputFiles, BehindLinksThatAreNotFollowedAreMentionedAsLeftOut) {
  fs::create_symlink(folder_ / "nowhere", folder_ / "dangling.txt");
  EXPECT_THAT(expand({"*.txt"}), ElementsAre("C.txt", "a.txt", "b.txt"));
  EXPECT_THAT(left_out_, ElementsAre(EndsWith("*.txt: skipped 1 link to a folder or to nothing")));
  fs::create_directory_symlink(folder_ / "sub", folder_ / "linked");
  EXPECT_THAT(expand({"**/*.txt"}), ElementsAre("C.txt", "a.txt", "b.txt", "sub/z.txt"));
  EXPECT_THAT(left_out_, ElementsAre(EndsWith("*.txt: skipped 2 links to a folder or to nothing")));
  EXPECT_THAT(expand({"linked/*.txt"}), ElementsAre("linked/z.txt"));
  EXPECT_THAT(left_out_, IsEmpty());
}

TEST_F(InputFiles, ThatAreNamedMayHaveAnyExtensionAndBeHidden) {
  create_folder(folder_ / ".cache");
  folder_.write(".cache/a.txt", "x");
  folder_.write(".notes", "x");
  EXPECT_THAT(expand({"sub/deep/z.h", ".notes", ".cache", ".n*"}),
              ElementsAre("sub/deep/z.h", ".notes", ".cache/a.txt", ".notes"));
}

TEST_F(InputFiles, OfADoubleStarAreThoseAtAnyDepth) {
  create_folder(folder_ / "sub/.git");
  folder_.write("sub/.git/a.h", "x");
  folder_.write("sub/.b.h", "x");
  EXPECT_THAT(expand({"**/*.h"}), ElementsAre("sub/deep/z.h"));
  EXPECT_THAT(expand({"sub/**/z.*"}), ElementsAre("sub/deep/z.h", "sub/z.txt"));
  EXPECT_THAT(expand({"sub/**"}), ElementsAre("sub/deep/y.MD", "sub/deep/z.h", "sub/z.txt"));
  for (const char* pattern : {"sub/**/deep/*.h", "s*/**/*.h", "sub/**.h", "**/**"}) {
    EXPECT_EQ(error(pattern).code(), ExitCode::kBadConfig);
    EXPECT_THAT(error(pattern).what(), HasSubstr("expected '**' as in DIR/**/NAME"));
  }
}

TEST_F(InputFiles, OfFormatsThatAreNotReadAreRefusedByName) {
  for (const char* name : {"a.xlsx", "a.ARROW", "a.tar.gz", "a.zip", "a.pdf"}) {
    folder_.write(name, "x");
    EXPECT_EQ(error(name).code(), ExitCode::kBadData);
    EXPECT_THAT(error(name).what(), HasSubstr(std::string(name) + ": "));
    EXPECT_THAT(error(name).what(), HasSubstr("files are not supported: "));
  }
  EXPECT_THAT(error("a.xl*").what(),
              HasSubstr(".xlsx files are not supported: convert it to .parquet, .csv"));
  EXPECT_THAT(error("a.tar.*").what(), HasSubstr(".tar files are not supported: unpack it first"));
  for (const char* name : {"a.parquet.gz", "a.safetensors.zst"}) {
    folder_.write(name, "x");
    EXPECT_THAT(error(name).what(), HasSubstr("expected a file that is not compressed: unpack it first"));
  }
  folder_.write("a.txt.gz", "x");
  EXPECT_THAT(error("a.txt.gz", InputUse::kPlainText).what(),
              HasSubstr("expected a file that is not compressed"));
  EXPECT_THAT(error("d.jsonl", InputUse::kPlainText).what(),
              HasSubstr("d.jsonl: expected plain text, found a .jsonl file"));
}

TEST_F(InputFiles, WithPatternCharactersInTheirNameAreTakenAsTheyAre) {
  folder_.write("odd [x] *.txt", "x");
  EXPECT_THAT(expand({"odd [x] *.txt"}), ElementsAre("odd [x] *.txt"));
}

TEST_F(InputFiles, ThatDoNotExistAreRefused) {
  EXPECT_EQ(error("missing.txt").code(), ExitCode::kNoInput);
  EXPECT_THAT(error("missing.txt").what(), HasSubstr("missing.txt: cannot be read: No such file"));
  EXPECT_EQ(error("*.html").code(), ExitCode::kNoInput);
  EXPECT_THAT(error("*.html").what(), HasSubstr("*.html: no file matches this pattern"));
  create_folder(folder_ / "empty");
  EXPECT_EQ(error("empty").code(), ExitCode::kNoInput);
  EXPECT_THAT(
      error("empty").what(),
      EndsWith("empty: no file to read in this folder: expected .txt, .text, .md, .markdown, .rst, .tex, "
               ".jsonl, .ndjson, .json, .csv, .tsv, .parquet or .safetensors"));
  folder_.write("empty/a.orc", "x");
  EXPECT_THAT(error("empty").what(), HasSubstr("skipped 1 file: 1 of other kinds (.orc); .orc: convert it"));
  EXPECT_EQ(error_of([] { find_input_files({}, InputUse::kDataset); }).code(), ExitCode::kBadConfig);
}

TEST_F(InputFiles, HaveTheirKindFromTheExtension) {
  EXPECT_EQ(input_kind("a.jsonl"), InputKind::kJson);
  EXPECT_EQ(input_kind("x/a.JSON"), InputKind::kJson);
  EXPECT_EQ(input_kind("a.ndjson"), InputKind::kJson);
  EXPECT_EQ(input_kind("a.SafeTensors"), InputKind::kPretokenized);
  EXPECT_EQ(input_kind("a.tsv.GZ"), InputKind::kTable);
  EXPECT_EQ(input_kind("a.pq"), InputKind::kParquet);
  EXPECT_EQ(input_kind("a.txt"), InputKind::kText);
  EXPECT_EQ(input_kind("a.zst"), InputKind::kText);
  EXPECT_EQ(input_kind("json"), InputKind::kText);
  EXPECT_EQ(input_kind("a.json/README"), InputKind::kText);
}

TEST_F(InputFiles, ThatAreNotTextAreRefusedByTheirContent) {
  EXPECT_EQ(content_error("plain \xC3\xA4 text\n"), "");
  EXPECT_EQ(content_error(""), "");
  EXPECT_EQ(content_error("#ifndef A\n{ int x; }\n"), "");
  EXPECT_EQ(content_error("latin \xE4"), "") << "the tokenizer names the place";
  EXPECT_EQ(content_error(std::string("ab\0c", 4)),
            ": expected UTF-8 text, found a binary file (a NUL byte at offset 2): leave it out");
  EXPECT_EQ(content_error("\x1f\x8b\x08 and so on"),
            ": expected UTF-8 text, found a gzip file: unpack it first");
  EXPECT_EQ(content_error("PAR1....", "content.json"),
            ": expected UTF-8 text, found a Parquet file: convert it to .jsonl");
  EXPECT_EQ(content_error("\xFF\xFE" + std::string("a\0", 2)),
            ": expected UTF-8 text, found UTF-16 text: convert it (`iconv -f UTF-16 -t UTF-8`)");
  EXPECT_THAT(content_error("version https://git-lfs.github.com/spec/v1\noid sha256:00\n"),
              HasSubstr("found a Git LFS pointer instead of the file itself (run `git lfs pull`)"));
  EXPECT_EQ(content_error("\x89PNG\r\n\x1a\n", "content", InputUse::kDataset, /*skip_invalid_utf8=*/true), "")
      << "left out and counted later";
  EXPECT_THAT(
      content_error(std::string("ab\0c", 4), "content", InputUse::kDataset, /*skip_invalid_utf8=*/true),
      HasSubstr("a binary file"));
}

TEST_F(InputFiles, WithJsonLinesInATextFileAreRefused) {
  const std::string refusal =
      ": expected text, found JSON Lines (an object per line): rename it to .jsonl, so that "
      "the text is taken from a field of the objects (--text_column)";
  EXPECT_EQ(content_error("{\"text\": \"a\"}\n"), refusal);
  EXPECT_EQ(content_error("\n  {\"text\": \"a\"}\r\n\n{\"id\": [1]}"), refusal);
  EXPECT_EQ(content_error("{\"text\": \"" + std::string(20'000, 'x') + "\"}\n"), refusal)
      << "longer than the head";
  EXPECT_EQ(content_error("{\"text\": \"a\"}\n", "content.jsonl"), "");
  for (const char* text :
       {"{\n", "{\"a\": 1} and more\n", "{\"a\": 1}\nno object\n", "[1]\n", "{ int x = 1; }\n", "{\"a\": "}) {
    EXPECT_EQ(content_error(text), "") << text;
  }
  EXPECT_EQ(content_error("{" + std::string(20'000, ' ')), "");
  EXPECT_THAT(content_error("{\"text\": \"a\"}\n", "content.txt", InputUse::kPlainText),
              EndsWith("JSON Lines (an object per line): write its text into .txt files first"));
}

TEST(CheckInputContent, NamesAGitLfsPointerWhateverTheFileIsCalled) {
  const TestFolder folder;
  for (const char* name : {"a.jsonl", "a.csv", "a.txt", "a.parquet", "a.jsonl.gz", "a.safetensors"}) {
    const auto path =
        folder.write(name, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123\n");
    expect_error(ExitCode::kBadData, {path.native(), "a Git LFS pointer", "git lfs pull"},
                 [&] { check_input_content(InputFile::open(path), InputUse::kDataset, false); });
  }
}

}  // namespace
}  // namespace tessera
