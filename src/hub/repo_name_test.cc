#include "hub/repo_name.h"

#include <gtest/gtest.h>

#include <string>

#include "test_folder.h"

namespace tessera {
namespace {

DatasetName dataset(std::string id, std::string revision, std::string config, std::string split) {
  return {{RepoType::kDataset, std::move(id), std::move(revision)}, std::move(config), std::move(split)};
}

TEST(HubModelName, IsAnOrganisationAndAName) {
  EXPECT_EQ(hub_model_name("meta-llama/Llama-3.2-1B"),
            (RepoName{RepoType::kModel, "meta-llama/Llama-3.2-1B", "main"}));
  EXPECT_EQ(hub_model_name("a/b@v1.0"), (RepoName{RepoType::kModel, "a/b", "v1.0"}));
  EXPECT_EQ(hub_model_name("a/b@refs/pr/3"), (RepoName{RepoType::kModel, "a/b", "refs/pr/3"}));
  EXPECT_EQ(hub_model_name("a/b@feature%2Fx"), (RepoName{RepoType::kModel, "a/b", "feature/x"}));
}

TEST(HubModelName, IsNotWhatLooksLikeAPath) {
  for (const char* text : {"",
                           "model",
                           "./model",
                           "../model",
                           "/a/b",
                           "a/b/c",
                           "a/",
                           "/b",
                           "a//b",
                           "~/model",
                           "a b/c",
                           "a/b ",
                           "a/model.safetensors",
                           "a/tokenizer.json",
                           "data/train.JSONL",
                           "a/b.gguf",
                           "a/.b",
                           ".a/b",
                           "a/b.",
                           "a--b/c",
                           "a/b..c",
                           "a/b@",
                           "a/b@../x",
                           "a/b@x/y",
                           "a/b:c",
                           "a/*"})
    EXPECT_FALSE(hub_model_name(text)) << text;
  EXPECT_FALSE(hub_model_name(std::string(97, 'a') + "/b"));
}

TEST(HubModelName, IsNotWhatExistsAsAPath) {
  const TestFolder folder;
  create_folder(folder / "org/name");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  EXPECT_FALSE(hub_model_name("org/name"));
  EXPECT_TRUE(hub_model_name("org/other"));
  std::filesystem::current_path(before);
}

TEST(HubDatasetName, HasConfigurationAndSplit) {
  EXPECT_EQ(hub_dataset_name("a/b"), dataset("a/b", "main", "", ""));
  EXPECT_EQ(hub_dataset_name("a/b/train"), dataset("a/b", "main", "", "train"));
  EXPECT_EQ(hub_dataset_name("a/b:en"), dataset("a/b", "main", "en", ""));
  EXPECT_EQ(hub_dataset_name("a/b@v2:en/test"), dataset("a/b", "v2", "en", "test"));
  EXPECT_EQ(hub_dataset_name("a/b@refs/convert/parquet/test"),
            dataset("a/b", "refs/convert/parquet", "", "test"));
}

TEST(HubDatasetName, IsNotWhatLooksLikeAFile) {
  for (const char* text :
       {"a/b/c.jsonl", "a/train.parquet", "a/b/c/d", "a/b:", "a/b:x/", "a/b/*", "text/*.txt", "a/b@:x"})
    EXPECT_FALSE(hub_dataset_name(text)) << text;
}

}  // namespace
}  // namespace tessera
