#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/log.h"
#include "data/row_plan.h"
#include "support/settings/foreign_datasets_fixture.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

class LlamaFactoryDatasetsTest : public ForeignDatasetsTest {
 protected:
  void info(const std::string& json) { folder_.write("dataset_info.json", json); }

  const std::string start_ = "dataset_dir: " + folder_.path().string() + "\nmodel: m\n";
};

TEST_F(LlamaFactoryDatasetsTest, NamesAreThoseOfDatasetInfo) {
  info(R"({
    "identity": {"file_name": "identity.json"},
    "wiki": {"hf_hub_url": "org/wiki", "subset": "en", "columns": {"prompt": "text"}},
    "glaive": {"file_name": "glaive.json", "formatting": "sharegpt", "columns": {"messages": "talk", "tools": "tools"},
               "tags": {"role_tag": "who", "content_tag": "what", "user_tag": "U", "assistant_tag": "A"}}})");
  const RunSpec spec = apply(
      start_ +
      "dataset: identity, glaive,wiki\ntemplate: llama3\nval_size: 0.1\nmix_strategy: interleave_under\n"
      "interleave_probs: 0.5,0.3,0.2\n");
  EXPECT_EQ(spec.data.chat_template, "llama_factory:llama3");
  EXPECT_EQ(spec.data.validation_split_percentage, 10);
  const DatasetOptions found = dataset_options(spec.data, spec.data.dataset, "m");
  ASSERT_EQ(found.sources.size(), 3u);
  EXPECT_THAT(found.sources[0].paths, ElementsAre(folder_.path().string() + "/identity.json"));
  EXPECT_EQ(found.sources[0].format.shape, RowShape::kInstruction);
  EXPECT_EQ(found.sources[0].weight, 0.5);
  EXPECT_EQ(found.sources[1].format.tags.role, "who");
  EXPECT_THAT(found.sources[2].paths, ElementsAre("org/wiki:en"));
  EXPECT_EQ(found.sources[2].format.shape, RowShape::kText);
  EXPECT_EQ(options(start_ + "dataset: [identity, wiki]\n").sources.size(), 2u) << "a list of names";
  EXPECT_EQ(options(start_ + "dataset: identity,wiki\nmix_strategy: interleave_under\n").sources[1].weight,
            1.0);
  EXPECT_THAT(refusal(start_ + "dataset: other\n"),
              HasSubstr("run.yaml:3: dataset: 'other' is not described in"));
  EXPECT_THAT(refusal(start_ + "dataset: wiki, wiki\n"), HasSubstr("'wiki' is named twice"));
  std::filesystem::create_directory(folder_.path() / "saved");
  folder_.write("saved/dataset_dict.json", "{}");
  EXPECT_THAT(
      refusal(start_ + "dataset: wiki\ntokenized_path: " + (folder_.path() / "saved").string() + "\n"),
      HasSubstr("has rows that LLaMA-Factory has tokenized"));
  EXPECT_THAT(refusal(start_ + "dataset: wiki\ntemplate: baichuan\n"),
              HasSubstr("template: baichuan is not built in"));
  EXPECT_THAT(
      refusal(start_ + "dataset: wiki,identity\nmix_strategy: interleave_under\ninterleave_probs: 1\n"),
      HasSubstr("expected one number for each of 2 datasets"));
  EXPECT_THAT(refusal(start_ + "dataset: wiki,identity\ninterleave_probs: 0.5,0.5\n"),
              HasSubstr("interleave_probs needs mix_strategy"));
  EXPECT_THAT(refusal(start_ + "dataset: wiki\nmix_strategy: interleave_over\n"),
              HasSubstr("interleave_over"));
  EXPECT_EQ(refusal("model: m\ndataset: wiki\ndataset_dir: [a]\n"),
            "run.yaml:3: dataset_dir: expected a folder, found a list of 1, [\"a\"]");
  const DatasetOptions online = options("dataset: org/rows\ndataset_dir: ONLINE\n");
  EXPECT_THAT(online.sources[0].paths, ElementsAre("org/rows"));
  EXPECT_EQ(online.sources[0].format.shape, RowShape::kInstruction);
}

TEST_F(LlamaFactoryDatasetsTest, OnlyNamedColumnsAreColumns) {
  info(R"({
    "plain": {"file_name": "a.json"},
    "named": {"file_name": "b.json", "columns": {"prompt": "q", "response": "a", "history": null, "system": ""}},
    "talk": {"file_name": "c.json", "formatting": "sharegpt", "columns": {"messages": "m", "system": "s"}}})");
  const DatasetOptions found = options(start_ + "dataset: plain,named,talk\n");
  using Columns = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(found.sources[0].format.columns,
            (Columns{{"input", "input"}, {"instruction", "instruction"}, {"output", "output"}}));
  EXPECT_EQ(found.sources[1].format.columns, (Columns{{"instruction", "q"}, {"output", "a"}}));
  EXPECT_EQ(found.sources[2].format.columns, (Columns{{"conversations", "m"}, {"system", "s"}}));
  for (const DataSource& source : found.sources) EXPECT_TRUE(source.format.pairs.has_value());
}

TEST_F(LlamaFactoryDatasetsTest, EveryTagIsRead) {
  info(R"({
    "plain": {"file_name": "a.json", "formatting": "sharegpt"},
    "all": {"file_name": "b.json", "formatting": "openai", "columns": {"messages": "m"},
            "tags": {"role_tag": "r", "content_tag": "c", "user_tag": "U", "assistant_tag": "A",
                     "observation_tag": "O", "function_tag": "F", "system_tag": "S"}},
    "some": {"file_name": "c.json", "formatting": "sharegpt",
             "tags": {"role_tag": "r", "content_tag": "c", "user_tag": "U", "assistant_tag": "A"}}})");
  const DatasetOptions found = options(start_ + "dataset: plain,all,some\n");
  using Roles = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(found.sources[0].format.tags.roles, (Roles{{"function_call", "function_call"},
                                                       {"gpt", "assistant"},
                                                       {"human", "user"},
                                                       {"observation", "tool"},
                                                       {"system", "system"}}));
  EXPECT_EQ(found.sources[0].format.tags.role + found.sources[0].format.tags.content, "fromvalue");
  EXPECT_EQ(found.sources[1].format.shape, RowShape::kMessages);
  EXPECT_EQ(
      found.sources[1].format.tags.roles,
      (Roles{{"A", "assistant"}, {"F", "function_call"}, {"O", "tool"}, {"S", "system"}, {"U", "user"}}));
  EXPECT_EQ(found.sources[2].format.tags.roles, (Roles{{"A", "assistant"}, {"U", "user"}}));
}

TEST_F(LlamaFactoryDatasetsTest, TargetsAreTheAnswersUnlessTheStageIsPretraining) {
  info(R"({"talk": {"file_name": "a.json", "formatting": "sharegpt"},
           "text": {"file_name": "b.json", "columns": {"prompt": "body"}}})");
  const auto targets_of = [&](const std::string& settings) {
    return options(start_ + "dataset: talk\n" + settings).sources[0].format.pairs->targets;
  };
  EXPECT_EQ(targets_of(""), PairRules::Targets::kAnswers);
  EXPECT_EQ(targets_of("stage: sft\ntrain_on_prompt: false\n"), PairRules::Targets::kAnswers);
  EXPECT_EQ(targets_of("mask_history: true\n"), PairRules::Targets::kLastAnswer);
  EXPECT_EQ(targets_of("stage: pt\n"), PairRules::Targets::kEverything);
  EXPECT_TRUE(options(start_ + "dataset: talk\ntrain_on_prompt: true\n").train_on_prompt);
  EXPECT_EQ(
      options(start_ + "dataset: talk\ndefault_system: Be kind.\n").sources[0].format.pairs->default_system,
      "Be kind.");
  EXPECT_THAT(refusal(start_ + "dataset: talk\nmask_history: true\ntrain_on_prompt: true\n"),
              HasSubstr("mask_history contradicts train_on_prompt"));
  EXPECT_THAT(refusal(start_ + "dataset: talk\nstage: pt\ntrain_on_prompt: true\n"),
              HasSubstr("train_on_prompt is not for stage pt"));
  EXPECT_EQ(options(start_ + "dataset: text\nstage: pt\n").sources[0].format.shape, RowShape::kText);
  EXPECT_THAT(refusal(start_ + "dataset: text\nstage: sft\n"), HasSubstr("'response' is not named"));
}

TEST_F(LlamaFactoryDatasetsTest, WhereRowsDifferOneWarningSaysSo) {
  info(R"({"talk": {"file_name": "a.json", "formatting": "openai"}})");
  LogTap tap;
  apply(start_ + "dataset: talk\nstage: pt\n");
  EXPECT_THAT(tap.take(),
              IsSupersetOf({HasSubstr("LLaMA-Factory reads its first message alone"),
                            HasSubstr("LLaMA-Factory adds \"detailed thinking off\""),
                            HasSubstr("cutoff_len is not set"), HasSubstr("finetuning_type is not set"),
                            HasSubstr("documents attend to those before them")}));
  apply(start_ + "dataset: talk\nstage: sft\nfinetuning_type: full\ncutoff_len: 8\n");
  EXPECT_THAT(tap.take(), ElementsAre(HasSubstr("detailed thinking off")));
}

TEST_F(LlamaFactoryDatasetsTest, DefaultsAreLlamaFactorys) {
  info(R"({"text": {"file_name": "b.json", "columns": {"prompt": "body"}}})");
  const std::string start = start_ + "dataset: text\n";
  EXPECT_EQ(apply(start).lora.finetuning_type, FinetuningType::kLora);
  EXPECT_EQ(apply(start + "finetuning_type: full\n").lora.finetuning_type, FinetuningType::kFull);
  EXPECT_FALSE(apply(start).data.packing);
  EXPECT_EQ(apply(start + "stage: pt\n").data.packing_mode(), Packing::kWrapped);
  EXPECT_EQ(apply(start + "stage: pt\npacking: false\n").data.packing_mode(), Packing::kNone);
  EXPECT_EQ(apply(start + "packing: true\n").data.packing_mode(), Packing::kKnapsack);
  EXPECT_EQ(apply(start + "packing: true\nneat_packing: true\n").data.packing_mode(), Packing::kKnapsack);
  EXPECT_EQ(apply(start + "packing: true\npacking_strategy: in_order\n").data.packing_mode(),
            Packing::kIsolated);
  EXPECT_EQ(apply(start + "cutoff_len: 77\nmax_length: 9\n").data.max_length, 77);
  EXPECT_THAT(refusal(start + "max_length: 9\n"), HasSubstr("max_length is the length of generated text"));
  EXPECT_FALSE(apply(start + "disable_shuffling: true\n").data.shuffle);
}

TEST_F(LlamaFactoryDatasetsTest, MaxSamplesAndSplitsAreSlices) {
  info(R"({"a": {"file_name": "a.json"}, "b": {"file_name": "b.json", "split": "train[10:20]"},
           "c": {"hf_hub_url": "o/n", "split": "test[:5%]"}, "d": {"file_name": "d.json", "split": "train[x]"}})");
  const DatasetOptions found = options(start_ + "dataset: a\nmax_samples: 7\n");
  EXPECT_THAT(found.sources[0].paths, ElementsAre(folder_.path().string() + "/a.json"));
  EXPECT_EQ(found.sources[0].format.rows, (RowSlice{.from = {}, .to = 7}));
  EXPECT_TRUE(found.sources[0].format.pairs.has_value());
  const DatasetOptions slices = options(start_ + "dataset: b, c\n");
  EXPECT_EQ(slices.sources[0].format.rows, (RowSlice{.from = 10, .to = 20}));
  EXPECT_THAT(slices.sources[1].paths, ElementsAre("o/n/test"));
  EXPECT_TRUE(slices.sources[1].format.rows->is_percent);
  EXPECT_THAT(refusal(start_ + "dataset: b\nmax_samples: 7\n"), HasSubstr("a slice beside max_samples"));
  EXPECT_THAT(refusal(start_ + "dataset: d\n"), HasSubstr("at most one slice"));
  EXPECT_THAT(refusal(start_ + "dataset: a\nmax_samples: 0\n"), HasSubstr("max_samples: expected a number"));
  EXPECT_THAT(refusal(start_ + "dataset: a\nmax_samples: 7\nstreaming: true\n"),
              HasSubstr("contradicts streaming"));
}

TEST_F(LlamaFactoryDatasetsTest, ANumberOfRowsIsHeldOut) {
  info(R"({"a": {"file_name": "a.json"}, "b": {"file_name": "b.json"}})");
  const RunSpec spec = apply(start_ + "dataset: a\nval_size: 100\nmax_samples: 700\n");
  EXPECT_THAT(spec.data.dataset, ElementsAre(folder_.path().string() + "/a.json[100:700]"));
  EXPECT_THAT(spec.data.eval_dataset, ElementsAre(folder_.path().string() + "/a.json[:100]"));
  EXPECT_TRUE(dataset_options(spec.data, spec.data.eval_dataset, "m").sources[0].format.pairs.has_value());
  EXPECT_THAT(refusal(start_ + "dataset: a\nval_size: 700\nmax_samples: 700\n"),
              HasSubstr("val_size: expected less than max_samples, 700"));
  EXPECT_THAT(refusal(start_ + "dataset: a,b\nval_size: 10\n"), HasSubstr("is supported for one data set"));
  EXPECT_THAT(refusal(start_ + "dataset: a\neval_dataset: b\nval_size: 10\n"),
              HasSubstr("val_size contradicts eval_dataset"));
  EXPECT_THAT(refusal(start_ + "dataset: a\nval_size: 1\n"), HasSubstr("a share of the rows"));
}

TEST_F(LlamaFactoryDatasetsTest, TextFilesHaveARowPerLine) {
  info(R"({"text": {"file_name": "a.txt", "columns": {"prompt": "text"}}, "plain": {"file_name": "a.txt"}})");
  folder_.write("a.txt", "one\ntwo\n");
  const DataSource text = options(start_ + "dataset: text\nstage: pt\n").sources[0];
  EXPECT_TRUE(text.format.has_lines);
  EXPECT_EQ(text.format.shape, RowShape::kText);
  const std::vector<DataSource> plain = options(start_ + "dataset: plain\nstage: sft\n").sources;
  EXPECT_THAT(error_of([&] { plan_rows(plain, {}); }).what(),
              HasSubstr("a.txt: expected rows of the shape alpaca, found a text file"));
}

TEST_F(LlamaFactoryDatasetsTest, ADefaultSystemMessageMayBeNone) {
  info(R"({"a": {"file_name": "a.json"}})");
  const auto system_of = [&](const std::string& settings) {
    return options(start_ + "dataset: a\n" + settings).sources[0].format.pairs->default_system;
  };
  EXPECT_EQ(system_of("template: qwen\ndefault_system: ''\n"), "");
  EXPECT_EQ(system_of("template: qwen\ndefault_system: null\n"), std::nullopt);
  EXPECT_EQ(system_of("default_system: Be kind.\n"), "Be kind.");
  EXPECT_THAT(refusal(start_ + "dataset: a\ndefault_system: ''\n"), HasSubstr("name a template"));
}

TEST_F(LlamaFactoryDatasetsTest, ThinkingIsAMatterOfTheTemplate) {
  info(R"({"a": {"file_name": "a.json"}})");
  const auto template_of = [&](const std::string& settings) {
    return apply(start_ + "dataset: a\n" + settings).data.chat_template;
  };
  EXPECT_EQ(template_of("template: qwen3\nenable_thinking: false\n"),
            "llama_factory:qwen3/enable_thinking=false");
  EXPECT_EQ(template_of("template: qwen3\nenable_thinking: true\n"), "llama_factory:qwen3");
  LogTap tap;
  EXPECT_EQ(template_of("template: qwen\nenable_thinking: false\n"), "llama_factory:qwen");
  EXPECT_THAT(tap.take(), IsSupersetOf({HasSubstr("enable_thinking (line 5) has no effect")}));
  EXPECT_THAT(refusal(start_ + "dataset: a\nenable_thinking: false\n"), HasSubstr("thoughts are a part"));
}

TEST_F(LlamaFactoryDatasetsTest, RowsThatComeOnceAreThoseOfConcat) {
  info(R"({"a": {"file_name": "a.json"}, "b": {"file_name": "b.json"}})");
  const std::string both =
      start_ + "dataset: a,b\nmix_strategy: interleave_once\ninterleave_probs: 0.2,0.8\n";
  EXPECT_EQ(options(both).sources[0].weight, std::nullopt);
  EXPECT_THAT(refusal(both + "disable_shuffling: true\n"), HasSubstr("with shuffling, interleave_once"));
}

TEST_F(LlamaFactoryDatasetsTest, WhatIsNotTrainedOnIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("ranking": true)", "a.ranking: not supported"},
      {R"("num_samples": 5)", "a.num_samples: not supported"},
      {R"("columns": {"prompt": "q", "response": "a", "kto_tag": "label"})",
       "a.columns.kto_tag: not supported"},
      {R"("columns": {"prompt": "q", "chosen": "c", "rejected": "r"})", "a.columns.chosen: not supported"},
      {R"("columns": {"prompt": "q", "response": "a", "images": "i"})", "a.columns.images: not supported"},
      {R"("columns": {"prompt": "q", "response": "a", "videos": "i"})", "a.columns.videos: not supported"},
      {R"("columns": {"prompt": "q", "response": "a", "audios": "i"})", "a.columns.audios: not supported"},
      {R"("columns": {"prompt": "q", "answer": "a"})", "a.columns: unknown key 'answer'"},
      {R"("columns": {"messages": "m"})", "'response' is not named"},
      {R"("formatting": "sharegpt", "columns": {"prompt": "m"})", "'messages' is not named"},
      {R"("formatting": "sharegpt", "tags": {"role": "m"})", "a.tags: unknown key 'role'"},
      {R"("formatting": "other")", "a.formatting: not supported"},
      {R"("split": "test")", "a.split: not supported"},
      {R"("colums": {})", "a: unknown key 'colums'"},
  };
  for (const auto& [keys, what] : cases) {
    info(std::string(R"({"a": {"file_name": "a.json", )") + keys + "}}");
    EXPECT_THAT(refusal(start_ + "dataset: a\n"), HasSubstr(what)) << keys;
  }
  for (const char* source : {"ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"}) {
    info(std::string("{\"a\": {\"") + source + "\": \"x\"}}");
    EXPECT_THAT(refusal(start_ + "dataset: a\n"), HasSubstr(source));
  }
  info(R"({"a": {"hf_hub_url": "o/n", "ms_hub_url": "o/m", "folder": "f"}})");
  EXPECT_THAT(refusal(start_ + "dataset: a\n"), HasSubstr("a.folder: not supported"));
}

TEST_F(LlamaFactoryDatasetsTest, LlamaFactorysNullSetsNothing) {
  const RunSpec spec = apply("dataset: a.jsonl\ndataset_dir: null\ntemplate: null\nval_size: null\n");
  EXPECT_THAT(spec.data.dataset, ElementsAre("a.jsonl"));
  EXPECT_EQ(spec.lora.finetuning_type, FinetuningType::kFull);
  EXPECT_EQ(spec.data.chat_template, "");
}

}  // namespace
}  // namespace tessera
