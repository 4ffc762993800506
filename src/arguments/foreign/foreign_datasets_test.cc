#include "arguments/foreign/foreign_datasets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "arguments/arguments.h"
#include "arguments/config_file.h"
#include "base/error.h"
#include "expect_error.h"
#include "test_folder.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ForeignDatasetsTest : public ::testing::Test {
 protected:
  TrainingArguments apply(const std::string& yaml) const {
    TrainingArguments args;
    FlagTable table;
    declare_training_flags(&table, &args);
    apply_config_text(yaml, ConfigSyntax::kYaml, "run.yaml", &table);
    return args;
  }
  DatasetOptions options(const std::string& yaml) const {
    const TrainingArguments args = apply(yaml);
    return dataset_options(args, args.dataset, "model");
  }
  std::string refusal(const std::string& yaml) const {
    const Error error = error_of([&] { apply(yaml); });
    EXPECT_EQ(error.code(), ExitCode::kBadConfig) << yaml;
    return error.what();
  }

  TestFolder folder_;
};

TEST_F(ForeignDatasetsTest, AxolotlsListOfDatasets) {
  const DatasetOptions found = options(R"(
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
  - path: org/chats
    name: en
    split: train
    type: chat_template
    field_messages: dialog
    message_property_mappings: {role: speaker, content: text}
    roles: {user: [me], assistant: [bot9]}
    roles_to_train: [assistant]
  - path: json
    data_files: [a.jsonl, b.jsonl]
    type: completion
    field: body
test_datasets:
  - {path: held.jsonl, type: sharegpt}
val_set_size: 0
train_on_inputs: false
)");
  ASSERT_EQ(found.sources.size(), 4u);
  EXPECT_EQ(found.sources[0].format.shape, RowShape::kInstruction);
  EXPECT_THAT(found.sources[1].paths, ElementsAre("org/chats:en/train"));
  const RowFormat& chats = found.sources[1].format;
  EXPECT_EQ(chats.shape, RowShape::kMessages);
  EXPECT_THAT(chats.columns, ElementsAre(std::pair<std::string, std::string>("messages", "dialog")));
  EXPECT_EQ(chats.tags.role + "," + chats.tags.content, "speaker,text");
  EXPECT_EQ(chats.tags.roles.size(), 2u);
  EXPECT_THAT(found.sources[3].paths, ElementsAre("b.jsonl"));
  EXPECT_THAT(found.sources[3].format.columns,
              ElementsAre(std::pair<std::string, std::string>("text", "body")));
  EXPECT_TRUE(found.assistant_only_loss);
}

TEST_F(ForeignDatasetsTest, WhatAxolotlHasAndIsMissingHereIsNamed) {
  EXPECT_THAT(
      refusal("datasets:\n  - {path: a.jsonl, type: alpaca_chat.load_qa}\n"),
      HasSubstr(
          "run.yaml:1: datasets: the type \"alpaca_chat.load_qa\" is not supported: expected completion, "
          "alpaca, sharegpt or chat_template"));
  EXPECT_THAT(refusal("datasets:\n  - {path: a.jsonl, type: alpaca, shards: 10}\n"),
              HasSubstr("'shards' is not supported"));
  EXPECT_THAT(refusal("datasets:\n  - {type: alpaca}\n"), HasSubstr("expected 'path' in every entry"));
  EXPECT_THAT(refusal("datasets:\n  - {path: a, type: chat_template, roles_to_train: [user]}\n"),
              HasSubstr("roles_to_train"));
  EXPECT_THAT(refusal("model: m\nval_set_size: 200\n"),
              HasSubstr("run.yaml:2: val_set_size: expected a share of the rows"));
}

TEST_F(ForeignDatasetsTest, LlamaFactorysDatasetInfo) {
  const std::string dir = folder_.path().string();
  folder_.write("dataset_info.json", R"({
    "identity": {"file_name": "identity.json"},
    "wiki": {"hf_hub_url": "org/wiki", "subset": "en", "columns": {"prompt": "text"}},
    "glaive": {"file_name": "glaive.json", "formatting": "sharegpt", "columns": {"messages": "talk", "tools": "tools"},
               "tags": {"role_tag": "who", "content_tag": "what", "user_tag": "U", "assistant_tag": "A"}},
    "dpo": {"file_name": "dpo.json", "ranking": true}})");
  const std::string start = "dataset_dir: " + dir + "\nmodel: m\n";
  const TrainingArguments args = apply(
      start +
      "dataset: identity, glaive,wiki\ntemplate: llama3\nval_size: 0.1\ninterleave_probs: 0.5,0.3,0.2\n");
  EXPECT_EQ(args.chat_template, "llama3");
  EXPECT_EQ(args.validation_split_percentage, 10);
  const DatasetOptions found = dataset_options(args, args.dataset, "m");
  ASSERT_EQ(found.sources.size(), 3u);
  EXPECT_THAT(found.sources[0].paths, ElementsAre(dir + "/identity.json"));
  EXPECT_EQ(found.sources[0].format.shape, RowShape::kInstruction);
  EXPECT_EQ(found.sources[0].weight, 0.5);
  EXPECT_EQ(found.sources[1].format.tags.role, "who");
  EXPECT_THAT(found.sources[2].paths, ElementsAre("org/wiki:en"));
  EXPECT_EQ(found.sources[2].format.shape, RowShape::kText);
  EXPECT_THAT(refusal(start + "dataset: other\n"),
              HasSubstr("run.yaml:3: dataset: 'other' is not described in"));
  EXPECT_THAT(refusal(start + "dataset: dpo\n"), HasSubstr("dpo.ranking: not supported"));
  EXPECT_THAT(refusal(start + "dataset: wiki\ntemplate: baichuan\n"),
              HasSubstr("template: baichuan is not built in"));
  EXPECT_THAT(refusal(start + "dataset: wiki\ninterleave_probs: 0.5,0.5\n"),
              HasSubstr("expected one number for each of 1"));
  EXPECT_EQ(refusal("model: m\ndataset: wiki\ndataset_dir: [a]\n"),
            "run.yaml:3: dataset_dir: expected a folder, found a list of 1, [\"a\"]");
}

TEST_F(ForeignDatasetsTest, LlamaFactorysNullSetsNothing) {
  const TrainingArguments args = apply(
      "dataset: a.jsonl\ndataset_dir: null\ntemplate: null\ninterleave_probs: null\nmix_strategy: null\n"
      "val_size: null\n");
  EXPECT_THAT(args.dataset, ElementsAre("a.jsonl"));
  EXPECT_EQ(args.chat_template, "");
}

TEST_F(ForeignDatasetsTest, ListsOfTextsStayAsTheyAre) {
  EXPECT_THAT(apply("dataset: [a.jsonl, 'b c.jsonl:0.5']\n").dataset,
              ElementsAre("a.jsonl", "b c.jsonl:0.5"));
  EXPECT_THAT(apply("dataset: a, b.jsonl\n").dataset, ElementsAre("a, b.jsonl"))
      << "only LLaMA-Factory's are names";
}

TEST(DataSource, WeightFollowsTheLastColon) {
  EXPECT_EQ(parse_data_source("a.jsonl:0.7").weight, 0.7);
  EXPECT_THAT(parse_data_source("org/name:config:2").paths, ElementsAre("org/name:config"));
  EXPECT_EQ(parse_data_source("org/name:config").weight, std::nullopt);
  EXPECT_EQ(error_of([] { parse_data_source("a.jsonl:0"); }).code(), ExitCode::kBadConfig);
  const TestFolder folder;
  const std::string odd = folder.write("x:5", "text").string();
  EXPECT_THAT(parse_data_source(odd).paths, ElementsAre(odd));
}

}  // namespace
}  // namespace tessera
