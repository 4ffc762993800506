// Columns and fields that settings name and no row has.
#include "data/named_columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "expect_error.h"
#include "support/dataset_test_util.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NamedColumnsTest : public DatasetTest {
 protected:
  DatasetOptions options_with(const RowFormat& format, const std::vector<std::string>& files) {
    DatasetOptions options;
    for (const std::string& file : files) {
      options.sources.emplace_back((folder_ / file).string());
      options.sources.back().format = format;
    }
    return options;
  }
  std::string refusal_of(const RowFormat& format, const std::vector<std::string>& files,
                         ExitCode code = ExitCode::kBadData) {
    const DatasetOptions options = options_with(format, files);
    const Error error = error_of([&] { plan_rows(options.sources, options); });
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  RowPlan plan(const RowFormat& format, const std::vector<std::string>& files) {
    const DatasetOptions options = options_with(format, files);
    return plan_rows(options.sources, options);
  }
};

TEST_F(NamedColumnsTest, AColumnThatNoRowHasIsRefused) {
  folder_.write("a.jsonl",
                "{\"q\": \"1\", \"a\": \"2\"}\n{\"q\": \"1\", \"a\": \"2\"}\n{\"q\": \"1\", \"a\": \"2\", "
                "\"more\": \"3\"}\n");
  RowFormat format = {.shape = RowShape::kInstruction,
                      .columns = {{"instruction", "q"}, {"input", "more"}, {"output", "a"}},
                      .pairs = PairRules()};
  plan(format, {"a.jsonl"});  // a row that lacks it has null there, as in the library datasets
  format.columns[1].second = "mor";
  EXPECT_THAT(
      refusal_of(format, {"a.jsonl"}),
      HasSubstr("a.jsonl: line 1: no row has the column 'mor', which is named for 'input': found q, a: "
                "name those that are read under columns in dataset_info.json"));
  format.columns[1] = {"input", std::string(kNoColumn)};
  plan(format, {"a.jsonl"});
  // --column_mapping, which is for all sources: one of them has the column.
  RowFormat mapped = {.columns = {{"system", "rules"}}};
  folder_.write("b.jsonl", "{\"instruction\": \"1\", \"output\": \"2\", \"rules\": null}\n");
  folder_.write("c.jsonl", "{\"instruction\": \"1\", \"output\": \"2\"}\n");
  plan(mapped, {"c.jsonl", "b.jsonl"});
  EXPECT_THAT(refusal_of(mapped, {"c.jsonl"}), HasSubstr("no row has the column 'rules'"));
  EXPECT_THAT(refusal_of({.text_column = "body"}, {"c.jsonl"}),
              HasSubstr("no row has the column 'body', which is named for 'text'"));
  folder_.write("d.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
  EXPECT_THAT(refusal_of({.text_column = "body"}, {"d.jsonl"}),
              HasSubstr("no row has the column 'body', which is named for 'text': found messages"));
}

TEST_F(NamedColumnsTest, AnAnswerThatIsNowhereIsRefused) {
  folder_.write("a.jsonl", "{\"instruction\": \"1\", \"response\": \"2\"}\n");
  const RowFormat format = {.shape = RowShape::kPromptText, .prompt = PromptText()};
  EXPECT_THAT(refusal_of(format, {"a.jsonl"}), HasSubstr("no row has the column 'output'"));
}

TEST_F(NamedColumnsTest, AFieldThatNoMessageHasIsRefused) {
  folder_.write("a.jsonl", R"({"chat": "[{\"role\": \"user\", \"text\": \"a\"}]"})"
                           "\n");
  RowFormat format = {
      .shape = RowShape::kMessages, .columns = {{"messages", "chat"}}, .turns = TurnTargets()};
  format.tags.properties = {{"role", "role"}, {"content", "text"}};
  plan(format, {"a.jsonl"});
  format.tags.properties.push_back({"tool_calls", "tool_calls"});
  plan(format, {"a.jsonl"});  // another name for nothing
  format.tags.properties.back().second = "calls";
  EXPECT_THAT(refusal_of(format, {"a.jsonl"}),
              HasSubstr("the field 'calls', which is named for 'tool_calls'"));
  format.tags.properties.pop_back();
  format.turns->training_field = "train";
  EXPECT_THAT(refusal_of(format, {"a.jsonl"}),
              HasSubstr("line 1: no message has the field 'train', which is named for "
                        "'message_field_training': found role, text"));
  format.turns->training_field = "";
  format.tags.properties[1].second = "content";
  EXPECT_THAT(refusal_of(format, {"a.jsonl"}), HasSubstr("no message has the field 'content'"));
}

TEST_F(NamedColumnsTest, ATextFileHasTheColumnTextAlone) {
  folder_.write("a.txt", "one\n\ntwo\n");
  EXPECT_THAT(
      refusal_of({.shape = RowShape::kInstruction, .pairs = PairRules()}, {"a.txt"}, ExitCode::kBadConfig),
      HasSubstr("a.txt: expected rows of the shape alpaca, found a text file, whose only column is 'text'"));
  EXPECT_THAT(refusal_of({.columns = {{"text", "body"}}, .pairs = PairRules()}, {"a.txt"}),
              HasSubstr("no row has the column 'body', which is named for 'text': found text"));
  write_integers(folder_ / "b.safetensors", {{"input_ids", {1, 2}, {5, 6}}});
  EXPECT_THAT(refusal_of({.shape = RowShape::kText}, {"b.safetensors"}, ExitCode::kBadConfig),
              HasSubstr("expected rows of the shape text, found token ids"));
  // Every line is a row where the format says so.
  DatasetOptions options = options_for({"a.txt"});
  EXPECT_EQ(open(options).num_rows(), 1);
  options.sources[0].format.has_lines = true;
  EXPECT_EQ(open(options).num_rows(), 2);
}

TEST_F(NamedColumnsTest, ACompletionMaskThatIsNotReadIsSaid) {
  folder_.write("a.jsonl", "{\"input_ids\": [5, 6], \"completion_mask\": [0, 1]}\n");
  write_integers(folder_ / "b.safetensors",
                 {{"input_ids", {1, 2}, {5, 6}}, {"completion_mask", {1, 2}, {0, 1}}});
  for (const char* file : {"a.jsonl", "b.safetensors"}) {
    DatasetOptions options = options_with({}, {file});
    EXPECT_THAT(plan_rows(options.sources, options).remarks, ElementsAre()) << file;
    options.reads_completion_mask = false;
    EXPECT_THAT(plan_rows(options.sources, options).remarks,
                ElementsAre(HasSubstr("completion_mask is not read, so every token is a target")))
        << file;
  }
}

}  // namespace
}  // namespace tessera
