#include "cli/hub_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "cli/terminal/hub_report.h"
#include "support/web/hub_server.h"
#include "test_folder.h"

namespace tessera {
namespace {

class TwoNames : public Command {
 public:
  explicit TwoNames(bool reads_weights) : reads_weights_(reads_weights) {}
  std::string name() const override { return "names"; }
  std::string summary() const override { return ""; }
  std::string usage() const override { return ""; }
  std::string description() const override { return ""; }
  void declare_flags(FlagTable* table) override {
    table->add("model", &model, "");
    table->add("tokenizer", &tokenizer, "");
    table->add("output_dir", &output_dir, "");
    table->add("dataset", &dataset, "");
  }
  bool reads_weights() const override { return reads_weights_; }
  void on_hub_names(const std::string& flag, const std::vector<std::string>& given) override {
    names[flag] = given.at(0);
  }
  DataArguments* data_arguments() override { return &data; }
  void run(FlagTable*) override {}

  std::string model;
  std::string tokenizer;
  std::string output_dir = "org/output";
  std::vector<std::string> dataset;
  DataArguments data;
  std::map<std::string, std::string> names;

 private:
  bool reads_weights_;
};

TEST(HubNames, BecomeFoldersOfModelsAndFilesOfDataSets) {
  const TestFolder folder(memory_folder());
  HubServer server;
  HubServer::Repo repo;
  repo.name.id = "org/tiny";
  repo.files = {
      {"config.json", "{}"}, {"tokenizer.json", "{}"}, {"model.safetensors", std::string(2000, 'w')}};
  server.add(repo);
  ::setenv("HF_ENDPOINT", server.endpoint().c_str(), 1);
  ::setenv("HF_HOME", folder.path().c_str(), 1);
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})
    ::unsetenv(name);

  const std::string snapshot = (folder / "hub/models--org--tiny/snapshots" / repo.commit).string();
  for (const bool reads_weights : {false, true}) {
    TwoNames command(reads_weights);
    FlagTable table;
    command.declare_flags(&table);
    command.model = "org/tiny";
    command.tokenizer = folder.path().string();
    resolve_hub_names(command, &table);
    EXPECT_EQ(command.model, snapshot);
    EXPECT_EQ(command.tokenizer, folder.path().string());
    EXPECT_EQ(command.output_dir, "org/output");
    EXPECT_THAT(command.names, testing::ElementsAre(testing::Pair("model", "org/tiny")));
    EXPECT_EQ(std::filesystem::exists(snapshot + "/model.safetensors"), reads_weights);
  }

  HubServer::Repo data;
  data.name = {RepoType::kDataset, "org/chats"};
  data.files = {{"data/train-00000-of-00002.parquet", "one"},
                {"data/train-00001-of-00002.parquet", "two"},
                {"data/test-00000-of-00001.parquet", "three"}};
  server.add(data);
  TwoNames command(false);
  command.dataset = {"org/chats:0.5", folder.path().string() + ":0.5", "org/chats/test:1"};
  FlagTable table;
  command.declare_flags(&table);
  resolve_hub_names(command, &table);
  EXPECT_EQ(command.data.hub_files["org/chats"].size(), 2u);
  EXPECT_THAT(command.data.hub_files["org/chats/test"],
              testing::ElementsAre(testing::EndsWith("test-00000-of-00001.parquet")));
  const DatasetOptions options = dataset_options(command.data, command.dataset, "model");
  EXPECT_EQ(options.sources[0].paths, command.data.hub_files["org/chats"]);
  EXPECT_EQ(options.sources[0].weight, 0.5);
  EXPECT_THAT(options.sources[1].paths, testing::ElementsAre(folder.path().string()));
  ::unsetenv("HF_ENDPOINT");
  ::unsetenv("HF_HOME");
}

TEST(DownloadBar, FitsIntoItsColumns) {
  for (const int64_t width : {20, 40, 79, 80}) {
    for (const int64_t done : {int64_t{0}, int64_t{1} << 30, int64_t{123'456'789'012}}) {
      HubProgress progress;
      progress.name = "organisation/quite-a-long-name-of-a-model-70b-instruct";
      progress.total_bytes = 123'456'789'012;
      progress.done_bytes = done;
      progress.bytes_per_second = 987'654'321;
      EXPECT_LE(std::ssize(download_bar(progress, width, false)), width);
    }
  }
  HubProgress progress;
  progress.name = "org/tiny";
  progress.total_bytes = 4 << 20;
  progress.done_bytes = 1 << 20;
  progress.bytes_per_second = 1 << 20;
  EXPECT_EQ(download_bar(progress, 80, false),
            "org/tiny [######.....................] 1.00 MiB of 4.00 MiB  1.0 MB/s  ETA 00:03");
}

}  // namespace
}  // namespace tessera
