#include "data/chat/example.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "expect_error.h"
#include "formats/value_json.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kWhere = "d.jsonl: line 7";

Example read(std::string_view json, const RowFormat& format = {}) {
  const Value row = parse_value(json, "d.jsonl");
  return read_example(row, shape_of_first_row(row, format, kWhere), format, kWhere);
}

std::string message_of(std::string_view json, const RowFormat& format = {}) {
  const Error error = error_of([&] { read(json, format); });
  EXPECT_EQ(error.code(), ExitCode::kBadData) << json;
  return error.what();
}

// "user: Hi | assistant: Hello"
std::string talk_of(const Example& example) {
  std::string talk;
  for (const Value& message : std::get<ChatExample>(example).messages) {
    const Value* content = message.find("content");
    talk += (talk.empty() ? "" : " | ") + *message.find("role")->string() + ": " +
            (content == nullptr   ? "none"
             : content->is_null() ? "null"
                                  : *content->string());
  }
  return talk;
}

TEST(RowShape, IsRecognisedByTheFields) {
  const std::pair<const char*, RowShape> cases[] = {
      {R"({"text": "a", "id": 1})", RowShape::kText},
      {R"({"prompt": "a", "completion": "b"})", RowShape::kPromptCompletion},
      {R"({"instruction": "a", "input": "", "output": "b"})", RowShape::kInstruction},
      {R"({"conversations": []})", RowShape::kConversations},
      {R"({"prompt": "a", "prompt_id": 3, "messages": []})", RowShape::kMessages},
      {R"({"instruction": "a", "output": "b", "text": "c"})", RowShape::kText},
      {R"({"input_ids": [1], "labels": [1]})", RowShape::kTokens},
  };
  for (const auto& [json, shape] : cases)
    EXPECT_EQ(recognise_shape(parse_value(json, "d"), {}), shape) << json;
  EXPECT_EQ(recognise_shape(parse_value(R"({"body": "a"})", "d"), {}), std::nullopt);
  EXPECT_EQ(recognise_shape(parse_value(R"({"body": "a", "messages": []})", "d"),
                            {.shape = {}, .text_column = "body", .columns = {}}),
            RowShape::kText);
  const RowFormat renamed = {.shape = {}, .text_column = "text", .columns = {{"messages", "dialog"}}};
  EXPECT_EQ(recognise_shape(parse_value(R"({"dialog": []})", "d"), renamed), RowShape::kMessages);
  for (const std::string& name : row_shape_names()) EXPECT_EQ(row_shape_name(*row_shape_by_name(name)), name);
}

TEST(RowShape, UnknownAndMixedShapesAreRefused) {
  EXPECT_THAT(
      message_of(R"({"body": "a", "id": 1})"),
      HasSubstr(
          "line 7: expected the columns messages, or conversations, or text, or prompt and completion"));
  EXPECT_THAT(message_of(R"({"body": "a"})"), HasSubstr("found body: name the column"));
  EXPECT_THAT(message_of(R"({"text": "a"})", {.shape = {}, .text_column = "body", .columns = {}}),
              testing::AnyOf(HasSubstr("no column 'body'"), HasSubstr("body")));
  EXPECT_THAT(message_of("[1]"), HasSubstr("line 7: expected an object, found a list"));
  const auto mixed = [] {
    read_example(parse_value(R"({"prompt": "a", "completion": "b"})", "d"), RowShape::kText, {}, kWhere);
  };
  EXPECT_STREQ(
      error_of(mixed).what(),
      "d.jsonl: line 7: found the shape prompt_completion, but earlier rows have the shape text: a dataset "
      "has one shape of rows");
  EXPECT_THAT(
      message_of(R"({"prompt": "a"})",
                 {.shape = RowShape::kPromptCompletion, .text_column = "text", .columns = {}}),
      HasSubstr(
          "expected the columns prompt and completion of the shape prompt_completion, found the columns "
          "prompt"));
}

TEST(Example, ConversationsHaveOpenAisRoles) {
  EXPECT_EQ(talk_of(read(R"({"system": "S", "conversations": [{"from": "human", "value": "Hi"},
                             {"from": "gpt", "value": "Hello"}, {"from": "observation", "value": "5"}]})")),
            "system: S | user: Hi | assistant: Hello | tool: 5");
  EXPECT_EQ(talk_of(read(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]},
                             {"role": "assistant", "content": null, "tool_calls": [], "name": null}]})")),
            "user: ab | assistant: null");
  const ChatExample call = std::get<ChatExample>(read(
      R"({"conversations": [{"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"}],
               "tools": "[{\"name\": \"f\"}]"})"));
  const Value& calls = *call.messages[0].find("tool_calls");
  EXPECT_EQ(*calls.list()->at(0).find("function")->find("arguments")->find("x")->integer(), 1);
}

TEST(Example, ToolsOfConversationsAreWrappedAsTemplatesExpect) {
  const auto tools_of = [](std::string_view json) { return std::get<ChatExample>(read(json)).tools; };
  const Value wrapped = parse_value(R"([{"type": "function", "function": {"name": "f"}}])", "tools");
  EXPECT_EQ(tools_of(R"({"conversations": [], "tools": "[{\"name\": \"f\"}]"})"), wrapped);
  EXPECT_EQ(tools_of(R"({"instruction": "a", "output": "b", "tools": [{"name": "f"}]})"), wrapped);
  EXPECT_EQ(tools_of(R"({"conversations": [], "tools": [{"type": "function", "function": {"name": "f"}}]})"),
            wrapped);
  EXPECT_EQ(tools_of(R"({"messages": [], "tools": [{"name": "f"}]})"),
            parse_value(R"([{"name": "f"}])", "tools"));
}

TEST(Example, SystemMessageOfAConversationTakesThePlaceOfTheColumns) {
  EXPECT_EQ(talk_of(read(R"({"system": "a", "conversations": [{"from": "system", "value": "b"},
                             {"from": "human", "value": "c"}]})")),
            "system: b | user: c");
  EXPECT_EQ(talk_of(read(R"({"system": "a", "conversations": [{"from": "human", "value": "c"}]})")),
            "system: a | user: c");
}

TEST(Example, MessagesMayBeJsonInAString) {
  EXPECT_EQ(talk_of(read(R"({"messages": "[{\"role\": \"user\", \"content\": \"a\"}]"})")), "user: a");
  EXPECT_THAT(message_of(R"({"messages": "hello"})"), HasSubstr("column 'messages': line 1: not valid JSON"));
}

TEST(Example, MessagesMayHaveFieldsAndRolesOfTheirOwn) {
  const RowFormat format = {
      .tags = {.role = "who", .content = "says", .roles = {{"me", "user"}, {"it", "assistant"}}}};
  EXPECT_EQ(talk_of(read(R"({"messages": [{"who": "me", "says": "a"}, {"who": "it", "says": "b"},
                                         {"who": "system", "says": "c"}]})",
                         format)),
            "user: a | assistant: b | system: c");
}

TEST(Example, FieldsThatAreNullAreDroppedFromMessages) {
  const Example example = read(R"({"messages": [{"role": "user", "content": "a", "tool_calls": null}]})");
  EXPECT_EQ(std::get<ChatExample>(example).messages[0].find("tool_calls"), nullptr);
}

TEST(Example, AlpacaIsAConversationWithAnswers) {
  const Example example = read(R"({"instruction": "Add", "input": "1 2", "output": "3", "system": "S",
                                   "history": [["q", "a"]]})");
  EXPECT_EQ(talk_of(example), "system: S | user: q | assistant: a | user: Add\n1 2 | assistant: 3");
  EXPECT_TRUE(std::get<ChatExample>(example).has_answers);
  EXPECT_EQ(talk_of(read(R"({"instruction": "Add", "input": null, "output": ""})")),
            "user: Add | assistant: ");
  EXPECT_EQ(talk_of(read(R"({"instruction": "Add", "input": "", "output": "3", "system": ""})")),
            "user: Add | assistant: 3");
}

TEST(Example, PromptAndCompletionAreTextsOrMessages) {
  const auto texts = std::get<CompletionExample>(read(R"({"prompt": "a", "completion": "b"})"));
  EXPECT_EQ(texts.prompt + "|" + texts.completion, "a|b");
  const Example chat = read(R"({"prompt": [{"role": "user", "content": "a"}],
                                "completion": [{"role": "assistant", "content": "b"}]})");
  EXPECT_EQ(talk_of(chat), "user: a | assistant: b");
  EXPECT_EQ(std::get<ChatExample>(chat).num_prompt_messages, 1);
}

TEST(Example, TokensLoseTheirPadding) {
  const auto tokens = std::get<TokenExample>(read(
      R"({"input_ids": [0, 5, 6, 0], "labels": [-100, -100, 6, -100], "attention_mask": [0, 1, 1, 0]})"));
  EXPECT_THAT(tokens.input_ids, ElementsAre(5, 6));
  EXPECT_THAT(tokens.labels, ElementsAre(-100, 6));
  EXPECT_THAT(std::get<TokenExample>(read(R"({"input_ids": []})")).labels, IsEmpty());
}

TEST(Example, WrongFieldsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"text": 5})", "line 7: column 'text': expected a string, found an integer"},
      {R"({"text": null})", "column 'text': expected a string, found null"},
      {R"({"prompt": "a", "completion": 1.5})", "column 'completion': expected a string, found a number"},
      {R"({"messages": {}})", "column 'messages': expected a list, found an object"},
      {R"({"messages": null})", "column 'messages': missing"},
      {R"({"messages": ["a"]})", "column 'messages'[0]: expected an object, found a string"},
      {R"({"messages": [{"content": "a"}]})",
       "'messages'[0]: expected a string 'role' (or 'from'), found none"},
      {R"({"messages": [{"role": "user", "content": 1}]})",
       "expected 'content' to be a string or a list of text"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       "expected parts of text, found one of type 'image_url'"},
      {R"({"conversations": [{"from": "nobody", "value": "a"}]})", "found 'nobody'"},
      {R"({"conversations": [{"from": "human"}]})", "expected a string 'value', found none"},
      {R"({"instruction": "a", "output": "b", "history": [["a"]]})", "expected pairs of strings"},
      {R"({"messages": [], "tools": "[1"})", "not valid JSON"},
      {R"({"messages": [], "chat_template_kwargs": 1})", "expected an object, found an integer"},
      {R"({"input_ids": [1.5]})",
       "column 'input_ids': value 0: expected an integer of 32 bits, found a number"},
      {R"({"input_ids": [1, 3000000000]})", "value 1: expected an integer of 32 bits, found 3000000000"},
      {R"({"input_ids": "a"})", "expected a list of integers, found a string"},
      {R"({"input_ids": [1, 2], "labels": [1]})",
       "column 'labels': expected 2 values as input_ids has, found 1"},
      {R"({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]})",
       "with zeros before or after them for padding"},
  };
  for (const auto& [json, message] : cases) EXPECT_THAT(message_of(json), HasSubstr(message)) << json;
}

}  // namespace
}  // namespace tessera
