// Data sets from a server that behaves like the Hub.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "expect_error.h"
#include "hub/hub.h"
#include "io/file.h"
#include "support/web/hub_server.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

class HubDataset : public testing::Test {
 protected:
  HubDataset() {
    repo_.name = {RepoType::kDataset, "org/chats", "main"};
    settings_ = server_.settings(folder_ / "hub");
  }
  // The names of the files relative to the snapshot; all of them exist.
  std::vector<std::string> resolve(const std::string& name) {
    std::vector<std::string> names;
    for (const fs::path& file : resolve_dataset(name, settings_)) {
      EXPECT_TRUE(fs::is_regular_file(file)) << file;
      const std::string text = file.string();
      const size_t at = text.find("/snapshots/");
      names.push_back(at == std::string::npos ? text : text.substr(text.find('/', at + 11) + 1));
    }
    return names;
  }

  TestFolder folder_{memory_folder()};
  HubServer server_;
  HubServer::Repo repo_;
  HubSettings settings_;
};

TEST_F(HubDataset, OfASplitDownloadsOnlyItsFiles) {
  repo_.files = {{"README.md", "# Chats\n"},
                 {"data/train-00000-of-00001.parquet", std::string(3000, 'a')},
                 {"data/test-00000-of-00001.parquet", std::string(3000, 'b')}};
  server_.add(repo_);
  EXPECT_THAT(resolve("org/chats/test"), ElementsAre("data/test-00000-of-00001.parquet"));
  EXPECT_EQ(server_.storage_bytes(), 3000);
  EXPECT_THAT(resolve("org/chats"), ElementsAre("data/train-00000-of-00001.parquet"));
  settings_.offline = true;
  EXPECT_THAT(resolve("org/chats/train"), ElementsAre("data/train-00000-of-00001.parquet"));
}

TEST_F(HubDataset, FollowsItsCard) {
  repo_.files = {{"README.md", "---\nconfigs:\n- config_name: en\n  data_files: en/*.jsonl\n---\n"},
                 {"en/b.jsonl", "{}\n"},
                 {"en/a b.jsonl", "[]\n"},
                 {"de/a.jsonl", "{}\n"}};
  server_.add(repo_);
  EXPECT_THAT(resolve("org/chats:en"), ElementsAre("en/a b.jsonl", "en/b.jsonl"));
  expect_error(ExitCode::kNoInput, {"org/chats: has no configuration 'fr'"},
               [&] { resolve("org/chats:fr"); });
}

TEST_F(HubDataset, WithALoadingScriptIsTakenFromItsConversion) {
  repo_.files = {{"chats.py", "import datasets\n"}, {"train.json", "{}"}};
  server_.add(repo_);
  expect_error(
      ExitCode::kBadConfig,
      {"org/chats: has a loading script, which is not run, and there is no refs/convert/parquet of it"},
      [&] { resolve("org/chats"); });
  HubServer::Repo converted = repo_;
  converted.name.revision = "refs/convert/parquet";
  converted.commit = std::string(40, 'c');
  converted.files = {{"default/train/0000.parquet", "PAR1"}, {"default/test/0000.parquet", "PAR1"}};
  server_.add(converted);
  EXPECT_THAT(resolve("org/chats"), ElementsAre("default/train/0000.parquet"));
  EXPECT_THAT(resolve("org/chats:default/test"), ElementsAre("default/test/0000.parquet"));
  EXPECT_THAT(resolve("org/chats@refs/convert/parquet/test"), ElementsAre("default/test/0000.parquet"));
}

TEST_F(HubDataset, OfUnreadableFilesOnlyIsAnError) {
  repo_.files = {{"a.zip", "PK"}};
  server_.add(repo_);
  expect_error(ExitCode::kBadConfig, {"has no files in a format that is read"},
               [&] { resolve("org/chats"); });
}

TEST_F(HubDataset, PullTakesDataAndCard) {
  repo_.files = {{"README.md", "# Chats\n"}, {"a.csv", "a\n"}, {"a.zip", "PK"}, {"run.py", ""}};
  server_.add(repo_);
  const fs::path snapshot = pull({repo_.name, {}, {}}, settings_);
  EXPECT_EQ(snapshot.parent_path().parent_path().filename(), "datasets--org--chats");
  EXPECT_TRUE(fs::exists(snapshot / "README.md"));
  EXPECT_TRUE(fs::exists(snapshot / "a.csv"));
  EXPECT_FALSE(fs::exists(snapshot / "a.zip"));
}

TEST_F(HubDataset, ThatIsAPathIsThePath) {
  EXPECT_THAT(resolve_dataset("text/*.txt", settings_), ElementsAre("text/*.txt"));
  EXPECT_TRUE(server_.requests().empty());
}

}  // namespace
}  // namespace tessera
