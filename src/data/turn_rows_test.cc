// Rows of Axolotl's data sets. Expected rows and labels are those of Axolotl 0.19.0 with the same tokenizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "base/log.h"
#include "expect_error.h"
#include "support/dataset_test_util.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TurnRowsTest : public DatasetTest {
 protected:
  TurnRowsTest() {
    set_template("{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{{ eos_token }}{% endfor %}");
  }

  void set_template(const std::string& text) { folder_.write("tokenizer/chat_template.jinja", text); }
  // Bytes in order, bos and eos as '<' and '>', bytes beyond ASCII as '#', no targets as '.'.
  static std::string shown(std::span<const int32_t> ids) {
    std::string text;
    for (const int32_t id : ids) {
      text += id == kIgnoredLabel ? '.'
              : id == kTestBos    ? '<'
              : id == kTestEos    ? '>'
              : id < 128          ? static_cast<char>(id)
                                  : '#';
    }
    return text;
  }
  struct Rows {
    std::vector<std::string> texts;
    std::vector<std::string> labels;
  };
  Rows rows_of(const std::string& json_lines, const RowFormat& format,
               const std::function<void(DatasetOptions*)>& change = {}) {
    folder_.write("d.jsonl", json_lines);
    DatasetOptions options = options_for({"d.jsonl"});
    options.add_special_tokens = true;
    options.chat_folder = folder_ / "tokenizer";
    options.sources[0].format = format;
    if (change) change(&options);
    const Dataset dataset = open(options);
    Rows rows;
    Dataset::Row row;
    for (int64_t i = 0; i < dataset.num_rows(); ++i) {
      dataset.read_row(i, &row);
      rows.texts.push_back(shown(row.input_ids));
      rows.labels.push_back(shown(row.labels.empty() ? row.input_ids : row.labels));
    }
    return rows;
  }
  static RowFormat chats(TurnTargets turns) {
    RowFormat format;
    format.shape = RowShape::kMessages;
    format.turns = std::move(turns);
    return format;
  }
  std::string labels_of(TurnTargets turns) { return rows_of(kTalk, chats(std::move(turns))).labels.at(0); }

  static constexpr const char* kTalk =
      R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"q1"},)"
      R"({"role":"assistant","content":"a1"},{"role":"user","content":"q2"},)"
      R"({"role":"assistant","content":"a2"}]})";
};

TEST_F(TurnRowsTest, EndTokensAreTargetsByTrainOnEos) {
  // row "s:s>u:q1>a:a1>u:q2>a:a2>"
  using enum EndTargets;
  EXPECT_EQ(labels_of({.eos = kTurn, .eot = kTurn}), "...........a1>.......a2>");
  EXPECT_EQ(labels_of({.eos = kAll, .eot = kAll}), "...>....>..a1>....>..a2>");
  EXPECT_EQ(labels_of({.eos = kLast, .eot = kLast}), "...........a1........a2>");
  EXPECT_EQ(labels_of({.eos = kNone, .eot = kNone}), "...........a1........a2.");
}

TEST_F(TurnRowsTest, RolesDecideWhoseMessagesAreTargets) {
  EXPECT_EQ(labels_of({.roles = {"user", "assistant"}}), "......q1>..a1>..q2>..a2>");
  EXPECT_EQ(labels_of({.all_roles = true}), "..s>..q1>..a1>..q2>..a2>");
  EXPECT_EQ(labels_of({.roles = {}, .eos = EndTargets::kAll, .eot = EndTargets::kAll}),
            "...>....>....>....>....>");
  EXPECT_EQ(labels_of({.drop_system = true}), ".......a1>.......a2>");
}

TEST_F(TurnRowsTest, EndsOfTurnsHaveARuleOfTheirOwn) {
  set_template(
      "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{{ '!' if loop.last else ';' }}"
      "{{ eos_token if loop.last }}{% endfor %}");
  using enum EndTargets;
  // '%' does not occur in the template.
  const auto labels = [&](EndTargets eos, EndTargets eot) {
    return labels_of({.eos = eos, .eot = eot, .eot_tokens = {";", "%"}});
  };
  EXPECT_EQ(labels(kTurn, kTurn), "...........a1;.......a2.>");
  EXPECT_EQ(labels(kTurn, kAll), "...;....;..a1;....;..a2.>");
  EXPECT_EQ(labels(kTurn, kNone), "...........a1........a2.>");
  EXPECT_EQ(labels(kAll, kLast), "...........a1.....;..a2.>");
  EXPECT_EQ(labels(kLast, kLast), "...........a1;.......a2.>");
  EXPECT_EQ(labels(kNone, kNone), "...........a1........a2..");
}

TEST_F(TurnRowsTest, AnEndOfTurnOfSeveralTokensIsRefused) {
  set_template("{% for m in messages %}{{ m.content }}END{% endfor %}");
  const Error error = error_of([&] { labels_of({.eot_tokens = {"END"}}); });
  EXPECT_EQ(error.code(), ExitCode::kBadConfig);
  EXPECT_THAT(error.what(),
              HasSubstr("eot_tokens: expected single tokens of the tokenizer, found 'END' of 3"));
}

TEST_F(TurnRowsTest, AMessageMaySayItselfWhetherItIsATarget) {
  RowFormat format = chats({.training_field = "train"});
  format.columns = {{"messages", "talk"}};
  format.tags.properties = {{"role", "from"}, {"content", "value"}};
  const Rows rows =
      rows_of(R"({"talk":[{"from":"human","value":"q1"},{"from":"gpt","value":"a1","train":false},)"
              R"({"from":"human","value":"q2","train":true},{"from":"gpt","value":"a2","train":null}]})",
              format);
  EXPECT_THAT(rows.texts, ElementsAre("u:q1>a:a1>u:q2>a:a2>"));
  EXPECT_THAT(rows.labels, ElementsAre("............q2>..a2>"));
}

TEST_F(TurnRowsTest, WhatAxolotlReadsOverInMessagesIsSaidOrRefused) {
  RowFormat format = chats({});
  format.columns = {{"messages", "talk"}};
  format.tags.properties = {{"role", "from"}, {"content", "value"}};
  const std::string start = R"({"talk":[{"from":"human","value":"q1"},{"from":"gpt","value":"a1",)";
  LogTap tap;
  EXPECT_THAT(rows_of(start + R"("trainable":false}]})", format).labels, ElementsAre(".......a1>"));
  EXPECT_THAT(tap.take(), Contains(HasSubstr("set message_field_training: trainable")));
  EXPECT_THAT(error_of([&] { rows_of(start + R"("images":["a.png"]}]})", format); }).what(),
              HasSubstr("message 1: expected text, found 'images'"));
}

TEST_F(TurnRowsTest, PropertiesReachTheTemplateUnderItsNames) {
  set_template(
      "{% for message in messages %}{{ message.role[0] }}:"
      "{% if message.thoughts %}({{ message.thoughts }}){% endif %}{{ message.content | trim }}"
      "{% if message['name'] %}@{{ message['name'] }}{% endif %}{{ eos_token }}{% endfor %}");
  const char* row = R"({"messages":[{"role":"user","content":" [q] ","name":"Z"},)"
                    R"({"role":"assistant","content":"","why":"t"},{"role":"user","content":"z"},)"
                    R"({"role":"assistant","content":"  z\u00e9","why":null}]})";
  RowFormat format = chats({});
  format.tags.properties = {{"role", "role"}, {"content", "content"}, {"thoughts", "why"}};
  const Rows rows = rows_of(row, format);
  EXPECT_THAT(rows.texts, ElementsAre("u:[q]@Z>a:(t)>u:z>a:z##>"));
  EXPECT_THAT(rows.labels, ElementsAre("..........(t)>......z##>"));
  format.turns->roles = {"user"};
  EXPECT_THAT(rows_of(row, format).labels, ElementsAre("..[q]@Z>........z>......"));
}

TEST_F(TurnRowsTest, ThoughtsOfAnAnswerGoIntoTheirField) {
  set_template(
      "{% for message in messages %}{{ message.role[0] }}:"
      "{% if message.reasoning_content %}({{ message.reasoning_content }}){% endif %}{{ message.content }}"
      "{{ eos_token }}{% endfor %}");
  RowFormat format = chats({.splits_thoughts = true});
  const Rows rows = rows_of(
      R"({"messages":[{"role":"user","content":"<think>u</think>q"},)"
      R"({"role":"assistant","content":"<think>\n t </think>\n\na "},)"
      R"({"role":"assistant","content":"<|begin_of_thought|>x<|end_of_thought|><|begin_of_solution|> s <|end_of_solution|>"}]})",
      format);
  EXPECT_THAT(rows.texts, ElementsAre("u:<think>u</think>q>a:(t)a >a:(x)s>"));
  EXPECT_THAT(rows.labels, ElementsAre("......................(t)a >..(x)s>"));
}

TEST_F(TurnRowsTest, OnlyTheRolesThatAreNamedChange) {
  const char* row =
      R"({"system":"S","messages":[{"role":"human","content":"q"},{"role":"bot","content":"b"},)"
      R"({"role":"gpt","content":"a"}]})";
  const Rows plain = rows_of(row, chats({}));
  EXPECT_THAT(plain.texts, ElementsAre("s:S>u:q>b:b>a:a>"));
  EXPECT_THAT(plain.labels, ElementsAre("..............a>"));
  RowFormat format = chats({});
  format.tags.roles = {{"bot", "assistant"}, {"human", "user"}};
  const Rows named = rows_of(row, format);
  EXPECT_THAT(named.texts, ElementsAre("s:S>u:q>a:b>g:a>"));
  EXPECT_THAT(named.labels, ElementsAre("..........b>...."));
}

TEST_F(TurnRowsTest, PartsOfAMessageMayBeTargets) {
  set_template(
      "{% for message in messages %}{{ message.role[0] }}:"
      "{% if message.reasoning_content %}({{ message.reasoning_content }}){% endif %}{{ message.content }}"
      "{{ eos_token }}{% endfor %}");
  const Rows rows = rows_of(
      R"({"messages":[{"role":"user","content":"abc","d":[{"begin_offset":1,"end_offset":1,"train":true}]},)"
      R"({"role":"assistant","reasoning_content":"r","content":[{"type":"text","text":"xé"},)"
      R"({"type":"text","text":"yz","train":false},{"type":"text","text":"w","weight":1}]},)"
      R"({"role":"assistant","content":"no","d":[]}]})",
      chats({.detail_field = "d"}));
  EXPECT_THAT(rows.texts, ElementsAre("u:abc>a:(r)x##yzw>a:no>"));
  EXPECT_THAT(rows.labels, ElementsAre("...b.>.....x##..w>....."));
}

TEST_F(TurnRowsTest, PromptsAreTextAroundColumns) {
  RowFormat format;
  format.shape = RowShape::kPromptText;
  format.prompt = {.format = "[I]{instruction} {input}[/I]",
                   .no_input_format = "[I]{instruction}{{}}[/I]",
                   .system_format = "({system})",
                   .default_system = "P"};
  format.columns = {{"system", "sys"}, {"output", "out"}};
  const char* lines =
      "{\"instruction\":\"q\",\"input\":\"x\",\"out\":\"o\",\"sys\":\"S\"}\n"
      "{\"instruction\":\"{q}\",\"out\":\"o\"}\n"
      "{\"instruction\":\"q\",\"input\":null,\"out\":\"o\",\"sys\":\"\"}\n";
  const Rows rows = rows_of(lines, format);
  EXPECT_THAT(rows.texts, ElementsAre("<(S)[I]q x[/I]o>", "<(P)[I]{q}{}[/I]o>", "<[I]q{}[/I]o>"));
  EXPECT_THAT(rows.labels, ElementsAre("..............o>", "................o>", "...........o>"));
  const Rows whole = rows_of(lines, format, [](DatasetOptions* options) { options->train_on_prompt = true; });
  EXPECT_EQ(whole.labels.at(0), "<(S)[I]q x[/I]o>");
}

TEST_F(TurnRowsTest, SegmentsSayThemselvesWhetherTheyAreTargets) {
  RowFormat format;
  format.shape = RowShape::kSegments;
  const Rows rows = rows_of(
      R"({"segments":[{"label":true,"text":"<s>Hi"},{"label":false,"text":"there"},{"label":true,"text":"</s>"}]})",
      format);
  EXPECT_THAT(rows.texts, ElementsAre("<Hithere>"));
  EXPECT_THAT(rows.labels, ElementsAre("<Hi.....>"));
}

TEST_F(TurnRowsTest, ASliceTakesAPartOfTheRowsOfAllFiles) {
  create_folder(folder_ / "many");
  folder_.write("many/1.jsonl", "{\"text\":\"a0\"}\n{\"text\":\"a1\"}\n{\"text\":\"a2\"}\n");
  folder_.write("many/2.jsonl", "{\"text\":\"b3\"}\n{\"text\":\"b4\"}\n");
  const auto texts = [&](const char* slice) {
    DatasetOptions options = options_for({"many"});
    options.sources[0].format.rows = parse_row_slice(slice);
    std::vector<std::string> firsts;
    for (const std::string& text : texts_of(open(options))) firsts.push_back(text.substr(0, 2));
    return firsts;
  };
  EXPECT_THAT(texts("[:1]"), ElementsAre("a0"));
  EXPECT_THAT(texts("[2:4]"), ElementsAre("a2", "b3"));
  EXPECT_THAT(texts("[-2:]"), ElementsAre("b3", "b4"));
  EXPECT_THAT(texts("[50%:]"), ElementsAre("a2", "b3", "b4"));  // 2.5 rows, rounded to even
  EXPECT_THAT(texts("[:100]"), ElementsAre("a0", "a1", "a2", "b3", "b4"));
}

TEST(RowSlice, TextThatIsNoneIsRecognised) {
  for (const char* text : {"[]", "[1]", "[a:2]", "[%:2]", "[:101%]", "1:2", "[1:2"})
    EXPECT_FALSE(parse_row_slice(text)) << text;
}

TEST_F(TurnRowsTest, RowsThatAreTooLongAreLeftOutOrRefused) {
  RowFormat format;
  format.shape = RowShape::kPromptText;
  format.prompt = {.format = "{instruction}", .no_input_format = "{instruction}"};
  const char* lines =
      "{\"instruction\":\"12345\",\"output\":\"o\"}\n{\"instruction\":\"1\",\"output\":\"o\"}\n";
  const auto with = [](ExcessLength excess) {
    return [excess](DatasetOptions* options) {
      options->max_length = 5;
      options->excess_length = excess;
    };
  };
  EXPECT_THAT(rows_of(lines, format, with(ExcessLength::kDrop)).texts, ElementsAre("<1o>"));
  EXPECT_THAT(error_of([&] { rows_of(lines, format, with(ExcessLength::kRaise)); }).what(),
              HasSubstr("a row of 8 tokens is longer than max_length 5"));
  RowFormat text;
  text.shape = RowShape::kText;
  EXPECT_THAT(rows_of("{\"text\":\"0123456789\"}", text, with(ExcessLength::kDrop)).texts,
              ElementsAre("<0123", "45678", "9>"))
      << "text is cut into rows";
}

}  // namespace
}  // namespace tessera
