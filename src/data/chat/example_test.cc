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
      // If several shapes fit, TRL 1.16 takes this one.
      {R"({"text": "a", "input_ids": [1]})", RowShape::kTokens},
      {R"({"text": "a", "prompt": "b", "completion": "c"})", RowShape::kPromptCompletion},
      {R"({"messages": [], "prompt": "b", "completion": "c"})", RowShape::kPromptCompletion},
      {R"({"text": "a", "messages": []})", RowShape::kMessages},
      // A column without a value is no column.
      {R"({"text": "a", "messages": null, "input_ids": null})", RowShape::kText},
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
  EXPECT_THAT(message_of(R"({"body": "a", "id": 1})"),
              HasSubstr("line 7: expected the columns input_ids, or prompt and completion, or messages, or "
                        "conversations, or text"));
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
            "user: ab | assistant: none");
  const ChatExample call = std::get<ChatExample>(read(
      R"({"conversations": [{"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"}],
               "tools": "[{\"name\": \"f\"}]"})"));
  const Value& calls = *call.messages[0].find("tool_calls");
  EXPECT_EQ(*calls.list()->at(0).find("function")->find("arguments")->find("x")->integer(), 1);
}

TEST(Example, ColumnsThatAreNullInAllRowsStillNameAShape) {
  bool is_certain = true;
  const Value row = parse_value(R"({"messages": null, "id": 1})", "d");
  EXPECT_EQ(shape_of_first_row(row, {}, kWhere, &is_certain), RowShape::kMessages);
  EXPECT_FALSE(is_certain);
  EXPECT_THAT(message_of(R"({"messages": null})"),
              HasSubstr("column 'messages': expected a list of messages, found none"));
  EXPECT_THAT(message_of(R"({"prompt": "a", "completion": null})"),
              HasSubstr("column 'completion': expected a string, found null"));
}

// Transformers 5.24 does this in _normalize_chat_messages and _alias_reasoning_fields.
TEST(Example, FieldsOfMessagesAreWhatTransformersGivesTemplates) {
  const auto message_of_row = [](const std::string& message) {
    return std::get<ChatExample>(read(R"({"messages": [)" + message + "]}")).messages.at(0);
  };
  const auto expect = [&](const std::string& message, std::string_view expected) {
    EXPECT_EQ(message_of_row(message), parse_value(expected, "expected")) << message;
  };
  expect(R"({"role": "assistant", "content": null, "name": null, "tool_calls": []})",
         R"({"role": "assistant", "tool_calls": []})");
  expect(
      R"({"role": "assistant", "content": "a", "reasoning": "r"})",
      R"({"thinking": "r", "role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"})");
  expect(R"({"role": "assistant", "thinking": "t", "content": "a", "reasoning_content": null})",
         R"({"role": "assistant", "thinking": "t", "content": "a", "reasoning_content": "t"})");
  expect(R"({"role": "assistant", "reasoning_content": "r", "content": "a", "thinking": "t"})",
         R"({"role": "assistant", "reasoning_content": "r", "content": "a", "thinking": "t"})");
  // OpenAI's fields before there were tools.
  expect(
      R"({"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}})",
      R"({"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]})");
  expect(R"({"role": "function", "name": "f", "content": "5"})",
         R"({"role": "tool", "name": "f", "content": "5"})");
  expect(R"({"role": "assistant", "tool_calls": "[{\"name\": \"f\"}]"})",
         R"({"role": "assistant", "tool_calls": [{"name": "f"}]})");
  expect(R"({"from": "gpt", "value": "a", "weight": 1.0})",
         R"({"role": "assistant", "content": "a", "weight": 1})");
}

TEST(Example, FieldsOfMessagesThatChangeWhatTheyTeachAreRefused) {
  const auto refusal_of = [](const std::string& field) {
    return message_of(R"({"messages": [{"role": "assistant", "content": "a", )" + field + "}]}");
  };
  EXPECT_THAT(refusal_of(R"("weight": 0.5)"),
              HasSubstr("'messages'[0]: expected a 'weight' of 0 or 1, found 0.5"));
  EXPECT_THAT(refusal_of(R"("weight": "1")"), HasSubstr("expected a 'weight' of 0 or 1, found a string"));
  EXPECT_THAT(refusal_of(R"("refusal": "No.")"), HasSubstr("expected the answer as 'content'"));
  EXPECT_THAT(refusal_of(R"("images": ["a.png"])"), HasSubstr("expected text, found 'images'"));
  EXPECT_THAT(refusal_of(R"("audio": {"id": "a"})"), HasSubstr("expected text, found 'audio'"));
  EXPECT_THAT(refusal_of(R"("loss": false)"), HasSubstr("'loss' is not read: a 'weight' of 0 or 1"));
  EXPECT_NO_THROW(
      read(R"({"messages": [{"role": "assistant", "content": "a", "refusal": null, "images": []}]})"));
}

// Dataset.to_json writes rows with different tools like this.
TEST(Example, NullsThatATableFilledInAreAbsentForTemplates) {
  const auto chat = std::get<ChatExample>(
      read(R"({"messages": [{"role": "assistant", "tool_calls": [{"id": null, "type": "function",
                              "function": {"name": "f", "arguments": {"city": null, "id": null, "x": 1}}}]}],
               "tools": [{"type": "function", "function": {"name": "f", "strict": null, "parameters": {"properties":
                          {"city": {"type": "string", "default": null, "enum": [null, "a"]}, "id": null}}}}]})"));
  EXPECT_EQ(chat.tools,
            parse_value(R"([{"type": "function", "function": {"name": "f", "parameters": {"properties":
                                        {"city": {"type": "string", "default": null, "enum": [null, "a"]}}}}}])",
                        "tools"));
  EXPECT_EQ(
      *chat.messages[0].find("tool_calls"),
      parse_value(R"([{"type": "function", "function": {"name": "f", "arguments": {"city": null, "x": 1}}}])",
                  "calls"));
}

TEST(Example, FunctionsAreToolsByTheirEarlierName) {
  EXPECT_EQ(std::get<ChatExample>(read(R"({"messages": [], "functions": [{"name": "f"}]})")).tools,
            parse_value(R"([{"type": "function", "function": {"name": "f"}}])", "tools"));
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
      {R"({"text": 1})", "column 'text': expected a string, found an integer"},
      {R"({"prompt": "a", "completion": 1.5})", "column 'completion': expected a string, found a number"},
      {R"({"messages": {}})", "column 'messages': expected a list, found an object"},
      {R"({"messages": null})", "column 'messages': expected a list of messages, found none"},
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
