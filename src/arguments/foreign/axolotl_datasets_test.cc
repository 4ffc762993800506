#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "arguments/foreign/foreign_datasets_fixture.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AxolotlDatasetsTest : public ForeignDatasetsTest {};

TEST_F(AxolotlDatasetsTest, AxolotlsListOfDatasets) {
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

TEST_F(AxolotlDatasetsTest, WhatAxolotlHasAndIsMissingHereIsNamed) {
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

}  // namespace
}  // namespace tessera
