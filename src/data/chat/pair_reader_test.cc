#include "data/chat/pair_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "formats/value_json.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

const std::string kPlace = "d.json: row 3";

RowFormat pair_format(RowShape shape) {
  RowFormat format = {.shape = shape, .pairs = PairRules()};
  if (shape == RowShape::kInstruction) {
    format.columns = {{"instruction", "q"}, {"input", "more"}, {"output", "a"}};
    return format;
  }
  format.columns = {{shape == RowShape::kMessages ? "messages" : "conversations", "chat"}};
  format.tags = {"who", "what", {{"U", "user"}, {"A", "assistant"}, {"F", "function_call"}, {"T", "tool"}}};
  return format;
}

ChatExample read_pair_row(std::string_view json, const RowFormat& format) {
  return std::get<ChatExample>(
      read_example(parse_value(std::string(json), "d.json"), *format.shape, format, kPlace));
}

std::string left_out(std::string_view json, const RowFormat& format) {
  try {
    read_pair_row(json, format);
  } catch (const LeftOutRow& row) {
    return row.what();
  }
  ADD_FAILURE() << json;
  return "";
}

Value messages_of(const std::string& json) { return parse_value(json, "expected"); }

TEST(PairRows, OnlyNamedColumnsAreRead) {
  RowFormat format = pair_format(RowShape::kInstruction);
  constexpr const char* kRow =
      R"({"q": "Say yes.", "a": "yes", "input": "note", "system": "hidden", "history": [["old q", "old a"]],
          "tools": "[{}]", "instruction": "other"})";
  ChatExample example = read_pair_row(kRow, format);
  EXPECT_EQ(Value(example.messages), messages_of(R"([{"role": "user", "content": "Say yes."},
                                                     {"role": "assistant", "content": "yes"}])"));
  EXPECT_TRUE(example.tools.is_null());
  EXPECT_TRUE(example.has_answers);
  format.columns.insert(format.columns.end(), {{"system", "system"}, {"history", "history"}});
  format.columns[1].second = "input";
  example = read_pair_row(kRow, format);
  EXPECT_EQ(Value(example.messages), messages_of(R"([{"role": "system", "content": "hidden"},
    {"role": "user", "content": "old q"}, {"role": "assistant", "content": "old a"},
    {"role": "user", "content": "Say yes.\nnote"}, {"role": "assistant", "content": "yes"}])"));
}

TEST(PairRows, TheFunctionsRoleIsAnAnswerThatCalls) {
  const RowFormat format = pair_format(RowShape::kConversations);
  const ChatExample example = read_pair_row(
      R"({"chat": [{"who": "U", "what": "Oslo?"},
                   {"who": "F", "what": "{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}"},
                   {"who": "T", "what": "3"}, {"who": "A", "what": "3 degrees."}]})",
      format);
  EXPECT_EQ(Value(example.messages), messages_of(R"([{"role": "user", "content": "Oslo?"},
    {"role": "assistant", "tool_calls": [{"type": "function",
                                          "function": {"name": "weather", "arguments": {"city": "Oslo"}}}]},
    {"role": "tool", "content": "3"}, {"role": "assistant", "content": "3 degrees."}])"));
  const ChatExample thought = read_pair_row(
      R"({"chat": [{"who": "U", "what": "?"},
                   {"who": "F", "what": "So.<tool_call>[{\"name\": \"f\", \"arguments\": {}}]</tool_call>"}]})",
      format);
  EXPECT_EQ(thought.messages[1], messages_of(R"({"role": "assistant", "content": "So.",
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]})"));
  constexpr const char* kNoJson = R"({"chat": [{"who": "U", "what": "?"}, {"who": "F", "what": "call f"}]})";
  EXPECT_THAT(error_of([&] { read_pair_row(kNoJson, format); }).what(),
              HasSubstr("d.json: row 3: column 'chat'[1]"));
}

TEST(PairRows, OpenAisMessagesKeepTheirCalls) {
  const ChatExample example = read_pair_row(
      R"({"chat": [{"who": "U", "what": "?"},
                   {"who": "A", "what": null, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
                   {"who": "T", "what": "1"}, {"who": "T", "what": "2"}, {"who": "A", "what": "3"}]})",
      pair_format(RowShape::kMessages));
  ASSERT_EQ(example.messages.size(), 5u);
  EXPECT_NE(example.messages[1].find("tool_calls"), nullptr);
  EXPECT_EQ(*example.messages[3].find("content")->string(), "2");
}

TEST(PairRows, RowsThatLlamaFactoryLeavesOutAreNamed) {
  const RowFormat talk = pair_format(RowShape::kConversations);
  EXPECT_EQ(left_out(R"({"chat": [{"who": "U", "what": "a"}, {"who": "bot", "what": "b"}]})", talk),
            "d.json: row 3: column 'chat'[1]: 'bot' is the role of no tag");
  EXPECT_THAT(left_out(R"({"chat": [{"who": "U", "what": "a"}]})", talk),
              HasSubstr("expected an answer as the last message"));
  EXPECT_THAT(left_out(R"({"chat": []})", talk), HasSubstr("expected an answer as the last message"));
  EXPECT_THAT(left_out(R"({"chat": [{"who": "A", "what": "a"}, {"who": "U", "what": "b"}]})", talk),
              HasSubstr("found 'assistant' for a question"));
  EXPECT_THAT(left_out(R"({"chat": [{"who": "U", "what": "a"}, {"who": "T", "what": "b"}]})", talk),
              HasSubstr("found 'tool' for an answer"));
  const RowFormat alpaca = pair_format(RowShape::kInstruction);
  EXPECT_THAT(left_out(R"({"q": "a", "a": null})", alpaca), HasSubstr("column 'a': expected a string"));
  EXPECT_THAT(left_out(R"({"q": "a"})", alpaca), HasSubstr("found none"));
}

TEST(PairRows, ARowWithoutItsQuestionIsRefused) {
  const Error missing = error_of([] { read_pair_row(R"({"a": "b"})", pair_format(RowShape::kInstruction)); });
  EXPECT_THAT(missing.what(), HasSubstr("d.json: row 3: column 'q': missing, found the columns a"));
  const Error talk = error_of([] { read_pair_row(R"({"b": 1})", pair_format(RowShape::kConversations)); });
  EXPECT_THAT(talk.what(), HasSubstr("column 'chat': missing, found the columns b"));
}

TEST(PairRows, FieldsThatChangeWhatIsLearnedAreRefused) {
  const auto refusal_of = [](const std::string& fields, RowShape shape = RowShape::kConversations) {
    const std::string row =
        R"({"chat": [{"who": "U", "what": "a"}, {"who": "A", "what": "b", )" + fields + "}]}";
    return std::string(error_of([&] { read_pair_row(row, pair_format(shape)); }).what());
  };
  EXPECT_THAT(refusal_of(R"("loss": false)"), HasSubstr("column 'chat'[1]: 'loss' is not read"));
  EXPECT_THAT(refusal_of(R"("weight": 0)"), HasSubstr("'weight' is not read, as in LLaMA-Factory"));
  EXPECT_THAT(refusal_of(R"("images": ["a.png"])"), HasSubstr("images, video and audio are not supported"));
  EXPECT_THAT(refusal_of(R"("tool_calls": [{}])"), HasSubstr("set formatting openai"));
  constexpr const char* kFine =
      R"({"chat": [{"who": "U", "what": "a", "id": 7}, {"who": "A", "what": "b", "weight": 1, "tool_calls": null}]})";
  EXPECT_EQ(read_pair_row(kFine, pair_format(RowShape::kConversations)).messages.size(), 2u);
  const Error history = error_of([] {
    RowFormat format = pair_format(RowShape::kInstruction);
    format.columns.push_back({"history", "h"});
    read_pair_row(R"({"q": "a", "a": "b", "h": "[]"})", format);
  });
  EXPECT_THAT(history.what(), HasSubstr("column 'h': expected a list of pairs, found a string"));
}

TEST(PairRows, SystemMessageIsTheRowsElseTheDefault) {
  RowFormat format = pair_format(RowShape::kConversations);
  format.tags.roles.push_back({"S", "system"});
  format.columns.push_back({"system", "rules"});
  format.pairs->default_system = "Be kind.";
  const auto system_of = [&](const std::string& before, const std::string& rest) {
    const ChatExample example = read_pair_row(
        "{\"chat\": [" + before + R"({"who": "U", "what": "a"}, {"who": "A", "what": "b"}])" + rest + "}",
        format);
    return *example.messages[0].find("content")->string();
  };
  EXPECT_EQ(system_of("", ""), "Be kind.");
  EXPECT_EQ(system_of("", R"(, "rules": "R")"), "R");
  EXPECT_EQ(system_of(R"({"who": "S", "what": "own"}, )", R"(, "rules": "R")"), "own");
  format.pairs->default_system = "";  // the template has one for rows without a system message
  EXPECT_EQ(system_of("", ""), "");
  EXPECT_NE(format.pairs->text(), PairRules().text());
}

TEST(PairRows, TargetsAreAnswersTheLastOneOrEverything) {
  RowFormat format = pair_format(RowShape::kConversations);
  constexpr const char* kRow = R"({"chat": [{"who": "U", "what": "a"}, {"who": "A", "what": "b"},
                                            {"who": "U", "what": "c"}, {"who": "A", "what": "d"}]})";
  EXPECT_EQ(read_pair_row(kRow, format).num_prompt_messages, 0);
  format.pairs->targets = PairRules::Targets::kLastAnswer;
  EXPECT_EQ(read_pair_row(kRow, format).num_prompt_messages, 3);
  EXPECT_TRUE(read_pair_row(kRow, format).has_answers);
  format.pairs->targets = PairRules::Targets::kEverything;
  EXPECT_FALSE(read_pair_row(kRow, format).has_answers);
}

}  // namespace
}  // namespace tessera
