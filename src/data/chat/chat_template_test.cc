#include "data/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/chat/messages.h"
#include "expect_error.h"
#include "support/dataset_test_util.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

class ChatTemplateTest : public ::testing::Test {
 protected:
  ChatTemplateTest() : tokenizer_(make_byte_tokenizer(folder_.path())) {}

  ChatTemplate load(const ChatTemplateOptions& options = {}) {
    return ChatTemplate::load(folder_.path(), tokenizer_, options);
  }
  // A template in the model's folder.
  ChatTemplate load_source(const std::string& source) {
    folder_.write("chat_template.jinja", source);
    return load();
  }
  std::string refusal(const ChatTemplateOptions& options = {}) {
    return error_of([&] { load(options); }).what();
  }

  // user, assistant, user, ...
  static ChatExample chat_of(const std::vector<std::string>& contents) {
    ChatExample chat;
    for (size_t i = 0; i < contents.size(); ++i)
      add_message(i % 2 == 0 ? "user" : "assistant", contents[i], &chat.messages);
    return chat;
  }
  // The text with the answers in brackets.
  static std::string answers_in(const ChatTemplate& chat_template, const ChatExample& chat) {
    RenderedChat rendered = chat_template.render(chat, {.find_answers = true});
    for (auto answer = rendered.answers.rbegin(); answer != rendered.answers.rend(); ++answer) {
      rendered.text.insert(static_cast<size_t>(answer->second), "]");
      rendered.text.insert(static_cast<size_t>(answer->first), "[");
    }
    return rendered.text;
  }
  static std::string ambiguity(const ChatTemplate& chat_template, const ChatExample& chat) {
    const Error error = error_of([&] { chat_template.render(chat, {.find_answers = true}); });
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    return error.what();
  }

  TestFolder folder_;
  Tokenizer tokenizer_;
};

TEST_F(ChatTemplateTest, IsFoundWhereTransformersFindsIt) {
  EXPECT_FALSE(has_chat_template(folder_.path()));
  folder_.write("tokenizer_config.json",
                R"({"eos_token": "</s>", "chat_template": "config {{ eos_token }}"})");
  EXPECT_TRUE(has_chat_template(folder_.path()));
  EXPECT_EQ(load().render(chat_of({"a"}), {}).text, "config </s>");
  folder_.write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "plain"},
                                                             {"name": "tool_use", "template": "tools"}]})");
  EXPECT_EQ(load().render(chat_of({"a"}), {}).text, "plain");
  ChatExample with_tools = chat_of({"a"});
  with_tools.tools = Value::List{Value::Object{{"name", "f"}}};
  EXPECT_EQ(load().render(with_tools, {}).text, "tools");
  EXPECT_EQ(load_source("file").render(chat_of({"a"}), {}).text, "file");
  EXPECT_EQ(load().source(), "file");
}

TEST_F(ChatTemplateTest, MayBeItsTextOrServeWhereTheModelHasNone) {
  const auto text = [&](const std::string& given) {
    return ChatTemplate::load(folder_.path(), tokenizer_, {.name_or_file = given})
        .render(chat_of({"a"}), {})
        .text;
  };
  EXPECT_EQ(text("{{ messages[0].content }}!"), "a!");
  EXPECT_EQ(text("tokenizer_default_fallback_chatml"), "<|im_start|>user\na<|im_end|>\n");
  folder_.write("tokenizer_config.json", R"({"chat_template": "own"})");
  EXPECT_EQ(text("tokenizer_default_fallback_chatml"), "own");
}

TEST_F(ChatTemplateTest, ThatIsMissingOrNoTemplateIsRefused) {
  EXPECT_THAT(refusal(),
              HasSubstr("the model has no chat template, which conversations need: give one with "
                        "--chat_template: a file, or the name of one that is built in (chatml, llama3)"));
  EXPECT_THAT(refusal({.name_or_file = "vicuna"}),
              HasSubstr("no such file, nor a template that is built in"));
  EXPECT_THAT(refusal({.name_or_file = "chatml", .date = "tomorrow"}), HasSubstr("expected YYYY-MM-DD"));
  folder_.write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "a"}]})");
  EXPECT_THAT(refusal(), HasSubstr("expected a chat template with the name 'default', found rag"));
  EXPECT_THAT(error_of([&] { load_source("a\n{% if %}"); }).what(),
              HasSubstr("chat_template.jinja: line 2: "));
}

TEST_F(ChatTemplateTest, BuiltInOnes) {
  EXPECT_EQ(load({.name_or_file = "chatml"}).render(chat_of({"Hi", "Hello"}), {}).text,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n");
  EXPECT_EQ(load({.name_or_file = "llama3"}).render(chat_of({" Hi "}), {.add_generation_prompt = true}).text,
            "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant"
            "<|end_header_id|>\n\n");
}

TEST_F(ChatTemplateTest, DateDoesNotDependOnTheDay) {
  folder_.write("chat_template.jinja", "{{ strftime_now('%d %b %Y %a') }}");
  EXPECT_EQ(load().render(chat_of({"a"}), {}).text, "26 Jul 2024 Fri");
  EXPECT_EQ(load({.name_or_file = "", .date = "2025-01-15"}).render(chat_of({"a"}), {}).text,
            "15 Jan 2025 Wed");
  EXPECT_NE(load({.name_or_file = "", .date = "2025-01-15"}).fingerprint(), load().fingerprint());
}

TEST_F(ChatTemplateTest, AnswersAreWhatTheTemplateEncloses) {
  const ChatTemplate chat_template = load_source(
      "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }};{% "
      "endgeneration %}"
      "{% else %}U:{{ m.content }};{% endif %}{% endfor %}");
  EXPECT_EQ(answers_in(chat_template, chat_of({"1", "2", "3", "4"})), "U:1;A:[2;]U:3;A:[4;]");
}

TEST_F(ChatTemplateTest, AnswersAreWhatTheyAddWithoutIt) {
  const ChatTemplate chatml = load({.name_or_file = "chatml"});
  EXPECT_EQ(
      answers_in(chatml, chat_of({"1", "2", "3", "4"})),
      "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n[2<|im_end|>\n]<|im_start|>user\n3<|im_end|>\n"
      "<|im_start|>assistant\n[4<|im_end|>\n]");
  ChatExample with_prompt = chat_of({"1", "2", "3", "4"});
  with_prompt.num_prompt_messages = 3;
  EXPECT_THAT(answers_in(chatml, with_prompt), HasSubstr("assistant\n2<"));
  EXPECT_THAT(answers_in(chatml, with_prompt), HasSubstr("assistant\n[4<"));
  EXPECT_EQ(answers_in(chatml, chat_of({"1"})), "<|im_start|>user\n1<|im_end|>\n");
}

TEST_F(ChatTemplateTest, AnswersThatCannotBeToldApartAreRefused) {
  const ChatExample chat = chat_of({"1", "2", "3", "4"});
  EXPECT_THAT(
      ambiguity(load_source("{% for m in messages %}{{ m.content if loop.last else '-' }}{% endfor %}"),
                chat),
      HasSubstr("the answer in message 3 cannot be told from the text around it: the chat template does not "
                "continue the text of the messages before it; enclose answers in the template in "
                "{% generation %}"));
  EXPECT_THAT(
      ambiguity(load_source("{% for m in messages %}{{ m.role[0] }}{{ m.content if loop.last or m.role == "
                            "'user' else '-' }}{% endfor %}"),
                chat),
      HasSubstr("message 1 cannot be told from the text around it: the chat template renders it differently "
                "once further messages follow"));
  EXPECT_THAT(ambiguity(load_source("{% if messages | length % 2 %}{{ raise_exception('odd') }}{% endif %}"
                                    "{% for m in messages %}{{ m.content }}{% endfor %}"),
                        chat),
              HasSubstr("refuses the messages before it by themselves"));
}

TEST_F(ChatTemplateTest, WhatUsersWriteIsNoSpecialToken) {
  const ChatTemplate chatml =
      load_source("{% for m in messages %}<s>{{ m.role[0] }}{{ m.content }}</s>{% endfor %}");
  const ChatExample chat = chat_of({"a</s>b<s></s>", "c</s>d", "</s"});
  const auto ids_of = [&](bool parse_special_tokens) {
    const RenderedChat rendered =
        chatml.render(chat, {.find_answers = true, .parse_special_tokens = parse_special_tokens});
    EXPECT_EQ(rendered.text, "<s>ua</s>b<s></s></s><s>ac</s>d</s><s>u</s</s>");
    EXPECT_EQ(rendered.text.substr(static_cast<size_t>(rendered.answers.at(0).first)),
              "<s>ac</s>d</s><s>u</s</s>");
    std::vector<int32_t> ids;
    std::vector<TokenCut> cuts;
    tokenizer_.encode(rendered.text, false, {.cuts = {}, .barriers = rendered.barriers}, &ids, &cuts);
    return ids;
  };
  const auto count = [](const std::vector<int32_t>& ids, int32_t id) {
    return std::count(ids.begin(), ids.end(), id);
  };
  EXPECT_EQ(count(ids_of(false), kTestEos), 3 + 1) << "of the template, and in the assistant's message";
  EXPECT_EQ(count(ids_of(false), kTestBos), 3);
  EXPECT_EQ(count(ids_of(true), kTestEos), 3 + 1 + 2);
  EXPECT_EQ(tokenizer_.decode(ids_of(false), false), tokenizer_.decode(ids_of(true), false));
  EXPECT_THAT(error_of([&] { chatml.render(chat_of({"\xEF\xB7\x90"}), {}); }).what(), HasSubstr("U+FDD0"));
}

}  // namespace
}  // namespace tessera
