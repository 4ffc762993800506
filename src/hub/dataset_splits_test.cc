#include "hub/dataset_splits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "expect_error.h"
#include "hub/file_choice.h"

namespace tessera {
namespace {

using testing::ElementsAre;

std::vector<std::string> choose(const std::string& split, std::vector<std::string> paths,
                                const std::vector<DatasetConfig>& configs = {},
                                const std::string& config = "") {
  std::sort(paths.begin(), paths.end());
  return choose_split({{RepoType::kDataset, "org/data"}, config, split}, configs, paths);
}

TEST(PathGlob, StarsStopAtSlashesUnlessDoubled) {
  EXPECT_TRUE(matches_path_glob("data/*.parquet", "data/a.parquet"));
  EXPECT_FALSE(matches_path_glob("data/*.parquet", "data/x/a.parquet"));
  EXPECT_TRUE(matches_path_glob("data/**", "data/x/a.parquet"));
  EXPECT_TRUE(matches_path_glob("**/a.parquet", "a.parquet"));
  EXPECT_TRUE(matches_path_glob("**/a.parquet", "data/x/a.parquet"));
  EXPECT_FALSE(matches_path_glob("**/a.parquet", "data/ba.parquet"));
  EXPECT_TRUE(matches_path_glob("data/**/a", "data/a"));
  EXPECT_TRUE(matches_path_glob("a-[0-9][!x].?", "a-1y.z"));
  EXPECT_FALSE(matches_path_glob("a-[0-9][!x].?", "a-1x.z"));
  EXPECT_TRUE(matches_path_glob("[a", "[a"));
  EXPECT_TRUE(matches_path_glob("", ""));
  EXPECT_FALSE(matches_path_glob("a", ""));
  EXPECT_TRUE(matches_path_glob("**", ""));
}

TEST(PathGlob, TakesNoTimeThatGrowsExponentially) {
  std::string glob;
  for (int i = 0; i < 200; ++i) glob += "*a";
  EXPECT_FALSE(matches_path_glob(glob + "b", std::string(3000, 'a')));
}

TEST(DataFile, HasAKnownEnding) {
  for (const char* path : {"a.parquet", "x/a.jsonl", "a.JSON", "a.csv.gz", "a.txt.zst", "a.safetensors"})
    EXPECT_TRUE(is_data_file(path)) << path;
  for (const char* path : {"README.md", "a.py", "dataset_infos.json", ".git/a.json", "x/.a.json",
                           "__pycache__/a.json", "a.zip", "a.gz", "a.arrow"})
    EXPECT_FALSE(is_data_file(path)) << path;
}

TEST(ChooseSplit, WithoutCardTakesShards) {
  const std::vector<std::string> paths = {
      "data/train-00000-of-00002.parquet", "data/train-00001-of-00002-abc.parquet",
      "data/test-00000-of-00001.parquet", "data/odd-name-00000-of-00001.parquet", "README.md"};
  EXPECT_THAT(choose("", paths),
              ElementsAre("data/train-00000-of-00002.parquet", "data/train-00001-of-00002-abc.parquet"));
  EXPECT_THAT(choose("odd-name", paths), ElementsAre("data/odd-name-00000-of-00001.parquet"));
  expect_error(ExitCode::kNoInput,
               {"org/data: has no split 'tset'", "did you mean 'test'?", "it has train, test, odd-name"},
               [&] { choose("tset", paths); });
}

TEST(ChooseSplit, WithoutCardTakesFoldersThenFileNames) {
  EXPECT_THAT(choose("validation", {"dev/a.csv", "train/b.csv", "x.csv"}), ElementsAre("dev/a.csv"));
  EXPECT_THAT(choose("", {"my-training_2.jsonl", "eval.jsonl", "trainer.jsonl"}),
              ElementsAre("my-training_2.jsonl"));
  EXPECT_THAT(choose("", {"b.jsonl", "x/a.jsonl", "README.md"}), ElementsAre("b.jsonl", "x/a.jsonl"));
  EXPECT_THAT(choose("", {"test.jsonl"}), ElementsAre("test.jsonl")) << "the only split";
}

TEST(ChooseSplit, FollowsTheCard) {
  const std::vector<DatasetConfig> configs = parse_dataset_card(
      "---\r\nlicense: mit\nconfigs:\n- config_name: en\n  default: true\n  data_files:\n  - split: train\n  "
      "  path: en/*.jsonl\n"
      "  - split: test\n    path:\n    - \"other/t.jsonl\"\n    - en/t.json\n- config_name: de\n  "
      "data_dir: german\n"
      "- config_name: all\n  data_files: \"**/*.jsonl\"\n---\n# Card\n",
      "README.md");
  ASSERT_EQ(configs.size(), 3U);
  const std::vector<std::string> paths = {"en/a.jsonl",    "en/b.jsonl",      "en/t.json",
                                          "other/t.jsonl", "german/test.csv", "german/train.csv"};
  EXPECT_THAT(choose("", paths, configs), ElementsAre("en/a.jsonl", "en/b.jsonl"));
  EXPECT_THAT(choose("test", paths, configs), ElementsAre("other/t.jsonl", "en/t.json"));
  EXPECT_THAT(choose("train", paths, configs, "de"), ElementsAre("german/train.csv"));
  EXPECT_THAT(choose("", paths, configs, "all"), ElementsAre("en/a.jsonl", "en/b.jsonl", "other/t.jsonl"));
  expect_error(ExitCode::kNoInput, {"has no configuration 'ed'", "it has en, de, all"},
               [&] { choose("", paths, configs, "ed"); });
  expect_error(ExitCode::kNoInput, {"has no split 'dev'", "it has train, test"},
               [&] { choose("dev", paths, configs); });
}

TEST(ChooseSplit, TakesOneFormatAsDatasetsDoes) {
  EXPECT_THAT(choose("", {"train.csv", "train.json", "train.jsonl.gz", "train_notes.txt"}),
              ElementsAre("train.json", "train.jsonl.gz"));
  EXPECT_THAT(choose("", {"a.json", "b.csv", "c.tsv", "d.csv"}), ElementsAre("b.csv", "c.tsv", "d.csv"));
  EXPECT_THAT(choose("", {"a.jsonl", "a.parquet"}), ElementsAre("a.parquet"));
}

TEST(ChooseSplit, OfSeveralConfigurationsNeedsAName) {
  const std::vector<DatasetConfig> configs = parse_dataset_card(
      "---\nconfigs:\n- config_name: a\n  data_files: a.csv\n- config_name: b\n  data_files: b.txt\n---\n",
      "card");
  expect_error(ExitCode::kNoInput, {"several configurations: name one, as in org/data:a; it has a, b"}, [&] {
    choose("", {"a.csv", "b.txt"}, configs);
  });
}

TEST(ChooseSplit, NamesWhatIsMissingOrOfAnotherFormat) {
  const std::vector<DatasetConfig> configs =
      parse_dataset_card("---\nconfigs:\n- config_name: default\n  data_files: x/*\n---\n", "card");
  expect_error(ExitCode::kNoInput, {"no file matches the data_files of its split 'train'"},
               [&] { choose("", {"a.csv"}, configs); });
  expect_error(ExitCode::kBadData, {"org/data: x/a.arrow: expected parquet", "org/data@refs/convert/parquet"},
               [&] { choose("", {"x/a.arrow"}, configs); });
}

TEST(ConvertedConfigs, AreFoldersOfTheBranch) {
  const std::vector<std::string> paths = {".gitattributes", "de/train/0000.parquet",
                                          "en/partial-train/0000.parquet", "en/partial-train/0001.parquet",
                                          "en/test/0000.parquet"};
  const std::vector<DatasetConfig> configs = converted_configs(paths);
  EXPECT_THAT(choose("", paths, configs, "en"),
              ElementsAre("en/partial-train/0000.parquet", "en/partial-train/0001.parquet"));
  EXPECT_THAT(choose("test", paths, configs, "en"), ElementsAre("en/test/0000.parquet"));
}

TEST(DatasetCard, WithoutConfigsHasNone) {
  for (const char* card : {"", "# Title\n", "---\nlicense: mit\n---\n", "---\nno end", "---\n- a\n---\n",
                           "---\nconfigs:\n---\n"})
    EXPECT_TRUE(parse_dataset_card(card, "card").empty()) << card;
}

TEST(DatasetCard, NamesTheLineOfAMistake) {
  struct Case {
    const char* block;
    std::vector<std::string> fragments;
  };
  const Case cases[] = {{"a: [\n", {"card:", "not YAML"}},
                        {"configs: x\n", {"card:2: configs: expected a list"}},
                        {"configs:\n- x\n", {"card:3: configs: expected a list of objects"}},
                        {"configs:\n- data_files:\n  - split: a\n",
                         {"card:4: data_files: expected objects with split and path"}},
                        {"configs:\n- config_name: [a]\n", {"card:3: config_name: expected a text"}},
                        {"configs: \xff\n", {"card: the YAML block is not UTF-8"}}};
  for (const Case& bad : cases) {
    expect_error(ExitCode::kBadData, bad.fragments,
                 [&] { parse_dataset_card("---\n" + std::string(bad.block) + "---\n", "card"); });
  }
}

}  // namespace
}  // namespace tessera
