#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "arguments/foreign/foreign_datasets_fixture.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LlamaFactoryDatasetsTest : public ForeignDatasetsTest {};

TEST_F(LlamaFactoryDatasetsTest, LlamaFactorysDatasetInfo) {
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

TEST_F(LlamaFactoryDatasetsTest, LlamaFactorysNullSetsNothing) {
  const TrainingArguments args = apply(
      "dataset: a.jsonl\ndataset_dir: null\ntemplate: null\ninterleave_probs: null\nmix_strategy: null\n"
      "val_size: null\n");
  EXPECT_THAT(args.dataset, ElementsAre("a.jsonl"));
  EXPECT_EQ(args.chat_template, "");
}

}  // namespace
}  // namespace tessera
