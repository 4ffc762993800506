#include "data/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "data/chat/messages.h"
#include "expect_error.h"
#include "support/dataset_test_util.h"
#include "test_paths.h"

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
      rendered.text.insert(static_cast<size_t>(answer->end), "]");
      rendered.text.insert(static_cast<size_t>(answer->begin), "[");
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

TEST_F(ChatTemplateTest, ATemplateMayComeFromAnotherTokenizersFolderAndBeToldAnotherEosToken) {
  const TestFolder other;
  other.write("chat_template.jinja", "{{ messages[0].content }}{{ eos_token }}");
  EXPECT_EQ(
      load({.name_or_file = other.path().string(), .eos_token = "[END]"}).render(chat_of({"a"}), {}).text,
      "a[END]");
  const TestFolder empty;
  EXPECT_THAT(refusal({.name_or_file = empty.path().string()}), HasSubstr("has no chat template"));
}

// OpenAI has arguments as JSON in a string. Like vLLM, axolotl and LLaMA-Factory, gives templates objects,
// unless the template joins them with text or prints them as they are.
TEST_F(ChatTemplateTest, ArgumentsOfToolCallsAreObjectsForTemplatesThatTakeThem) {
  const auto render = [this](const std::string& printed, const std::string& arguments) {
    ChatExample chat;
    chat.messages = {Value::Object{
        {"role", "assistant"},
        {"tool_calls",
         Value::List{Value::Object{{"type", "function"},
                                   {"function", Value::Object{{"name", "f"}, {"arguments", arguments}}}}}}}};
    return load_source("{% for m in messages %}{% for c in m.tool_calls %}" + printed +
                       "{% endfor %}{% endfor %}")
        .render(chat, {})
        .text;
  };
  const std::string json = R"({"city":"Oslo", "days":[1,2.0]})";
  const std::string as_json = R"({"city": "Oslo", "days": [1, 2.0]})";
  // Qwen2.5, Llama 3.1; Qwen3; by name.
  EXPECT_EQ(render("{{ c.function.arguments | tojson }}", json), as_json);
  EXPECT_EQ(render("{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
                   "{{ c.function.arguments | tojson }}{% endif %}",
                   json),
            as_json);
  EXPECT_EQ(render("{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}", json),
            "city=Oslo;days=[1, 2.0];");
  // DeepSeek-V3; templates that print a string.
  EXPECT_EQ(render("{{ '<' + c.function.arguments + '>' }}", json), "<" + json + ">");
  EXPECT_EQ(render("{{ c.function.arguments }}", json), json);
  EXPECT_EQ(render("{{ c.function.arguments | tojson }}", ""), "{}");
  EXPECT_THAT(error_of([&] { render("{{ c.function.arguments }}", "{city}"); }).what(),
              HasSubstr("'arguments' of a tool call: line 1"));
  EXPECT_THAT(error_of([&] { render("{{ c.function.arguments }}", "[1]"); }).what(),
              HasSubstr("expected an object, or JSON of one, found a list"));
}

TEST_F(ChatTemplateTest, IsFoundWhereTransformersFindsIt) {
  EXPECT_FALSE(has_chat_template(folder_.path()));
  folder_.write("tokenizer_config.json",
                R"({"eos_token": "</s>", "chat_template": "config {{ eos_token }}"})");
  EXPECT_TRUE(has_chat_template(folder_.path()));
  tokenizer_ = Tokenizer::open(folder_.path());
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
  EXPECT_THAT(answers_in(chatml, with_prompt), HasSubstr("assistant\n[2<"));
  EXPECT_THAT(answers_in(chatml, with_prompt), HasSubstr("assistant\n[4<"));
  EXPECT_EQ(answers_in(chatml, chat_of({"1"})), "<|im_start|>user\n1<|im_end|>\n");
}

// Where templates treat earlier messages in another way than the last one, or write the generation prompt in
// another way than an answer's start.
TEST_F(ChatTemplateTest, AnswersAreWhatIsWrittenForTheMessage) {
  const ChatExample chat = chat_of({"1", "2", "3", "4"});
  // Qwen3's template writes earlier answers without their thoughts.
  EXPECT_EQ(
      answers_in(
          load_source("{% for m in messages %}<{{ m.role[0] }}>{% if m.role == 'assistant' and loop.last %}"
                      "<think></think>{% endif %}{{ m.content }};{% endfor %}"
                      "{% if add_generation_prompt %}<a>{% endif %}"),
          chat),
      "<u>1;<a>[2;]<u>3;<a>[<think></think>4;]");
  // Phi-3.5's writes an end-of-text token instead of a generation prompt; it belongs to the last answer.
  const ChatTemplate phi = load_source(
      "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }};{% endfor %}"
      "{% if add_generation_prompt %}<a>{% else %}<eos>{% endif %}");
  EXPECT_EQ(answers_in(phi, chat), "<u>1;<a>[2;]<u>3;<a>[4;<eos>]");
  EXPECT_EQ(answers_in(phi, chat_of({"1", "2", "3"})), "<u>1;<a>[2;]<u>3;<eos>");
  // In DeepSeek-R1's the generation prompt begins a thought, the answer does not.
  EXPECT_EQ(
      answers_in(load_source("{% for m in messages %}<{{ m.role[0] }}>{{ m.content.split('</think>')[-1] }};"
                             "{% endfor %}{% if add_generation_prompt %}<a><think>{% endif %}"),
                 chat_of({"1", "x</think>2", "3", "<t4"})),
      "<u>1;<a>[2;]<u>3;<a>[<t4;]");
  // Llama 3's writes a bos token before the first message, here an answer.
  const ChatTemplate llama3 = load({.name_or_file = "llama3"});
  ChatExample first;
  add_message("assistant", "Hi", &first.messages);
  add_message("user", "1", &first.messages);
  add_message("assistant", " 2 ", &first.messages);
  EXPECT_EQ(answers_in(llama3, first),
            "<s><|start_header_id|>assistant<|end_header_id|>\n\n[Hi<|eot_id|>]<|start_header_id|>user"
            "<|end_header_id|>\n\n1<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[2<|eot_id|>]");
  // A template that refuses a conversation of only the messages before an answer.
  EXPECT_EQ(answers_in(load_source("{% if messages | length % 2 %}{{ raise_exception('odd') }}{% endif %}"
                                   "{% for m in messages %}{{ m.content }}{% endfor %}"),
                       chat),
            "1[2]3[4]");
}

// TRL's template for it does the same: it encloses the line end after the role.
TEST_F(ChatTemplateTest, AnswersOfQwen25BeginWithALineEnd) {
  const auto file =
      shared_folder() / "data" / "chat-templates" / "Qwen-Qwen2.5-7B-Instruct" / "chat_template.jinja";
  EXPECT_THAT(
      answers_in(load({.name_or_file = file.string()}), chat_of({"1", "2", "3", "4"})),
      HasSubstr("<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant[\n2<|im_end|>\n]<|im_start|>user\n3"
                "<|im_end|>\n<|im_start|>assistant[\n4<|im_end|>\n]"));
}

TEST_F(ChatTemplateTest, AnswersThatCannotBeToldApartAreRefused) {
  const ChatExample chat = chat_of({"1", "2", "3", "4"});
  EXPECT_THAT(
      ambiguity(load_source("{% for m in messages %}{{ m.content if loop.last else '-' }}{% endfor %}"),
                chat),
      HasSubstr(
          "the answer in message 1 cannot be told from the text around it: the chat template does not write "
          "what it says; enclose answers in the template in {% generation %}, give another one with "
          "--chat_template, or train on whole conversations (--assistant_only_loss false)"));
  EXPECT_THAT(ambiguity(load_source("{% for i in range(4) %}{{ messages[i].content }}{% endfor %}"), chat),
              HasSubstr("does not write it in a loop over the messages"));
  EXPECT_THAT(ambiguity(load_source("{% for m in messages %}-{{ m.role }}: {{ m.content }}{% endfor %}"
                                    "{% if add_generation_prompt %}Answer: {% endif %}"),
                        chat),
              HasSubstr("does not continue the text of the messages before it"));
}

// The text of growing prefixes of the messages, each of which continues the one before.
std::string grown_answers(const ChatTemplate& chat_template, const ChatExample& chat) {
  std::string text;
  ChatExample prefix = chat;
  prefix.messages.clear();
  for (const Value& message : chat.messages) {
    const bool is_answer = *message.find("role") == Value("assistant");
    const std::string former = chat_template.render(prefix, {}).text;
    const std::string before = chat_template.render(prefix, {.add_generation_prompt = is_answer}).text;
    prefix.messages.push_back(message);
    const std::string after = chat_template.render(prefix, {}).text;
    EXPECT_TRUE(before.starts_with(former) && after.starts_with(before)) << after;
    text += before.substr(former.size()) + (is_answer ? "[" : "") + after.substr(before.size()) +
            (is_answer ? "]" : "");
  }
  return text;
}

TEST_F(ChatTemplateTest, AnswersThatHoldWhatAToolSaysAreRefused) {
  ChatExample chat = chat_of({"1", "2", "3", "4"});
  *chat.messages[2].find("role") = "tool";
  EXPECT_THAT(
      ambiguity(
          load_source("{% for m in messages %}{% if m.role != 'tool' %}{{ m.content }}{% if not loop.last "
                      "and messages[loop.index].role == 'tool' %}{{ messages[loop.index].content }}"
                      "{% endif %}{% endif %}{% endfor %}"),
          chat),
      HasSubstr(
          "the answer in message 1 cannot be told from the text around it: the chat template writes what "
          "another message says within it"));
}

TEST_F(ChatTemplateTest, BothWaysToFindAnswersAgree) {
  const std::string sources[] = {
      "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
      "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content | trim }} </s>{% else %}[{{ m.role "
      "}}]"
      "{{ m.content | tojson }}[/]{% endif %}{% endfor %}",
      "{% for m in messages %}{{ '<s>' + m.role + '\n' + m.content.split('</think>')[-1] + '</s>' }}{% "
      "endfor %}"
      "{{ '<s>assistant\n' if add_generation_prompt }}"};
  const std::string contents[] = {
      "", " ", "a", "<s>", "</s>x", "<|end|>\n", "t</think>b", "<s>assistant\n", "[/] c"};
  std::mt19937 random(5);
  for (const std::string& source : sources) {
    const ChatTemplate chat_template = load_source(source);
    for (int round = 0; round < 100; ++round) {
      ChatExample chat;
      for (auto left = 1 + random() % 6; left > 0; --left) {
        add_message(std::vector<std::string>{"system", "user", "assistant", "tool"}[random() % 4],
                    contents[random() % std::size(contents)], &chat.messages);
      }
      EXPECT_EQ(answers_in(chat_template, chat), grown_answers(chat_template, chat));
    }
  }
}

TEST_F(ChatTemplateTest, WhatUsersWriteIsNoSpecialToken) {
  const ChatTemplate chatml =
      load_source("{% for m in messages %}<s>{{ m.role[0] }}{{ m.content }}</s>{% endfor %}");
  const ChatExample chat = chat_of({"a</s>b<s></s>", "c</s>d", "</s"});
  const auto ids_of = [&](bool parse_special_tokens) {
    const RenderedChat rendered =
        chatml.render(chat, {.find_answers = true, .parse_special_tokens = parse_special_tokens});
    EXPECT_EQ(rendered.text, "<s>ua</s>b<s></s></s><s>ac</s>d</s><s>u</s</s>");
    EXPECT_EQ(rendered.text.substr(static_cast<size_t>(rendered.answers.at(0).begin)),
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
  // Whatever the template does to it.
  const ChatTemplate json = load_source(
      "{% for m in messages %}{{ m.content | tojson(ensure_ascii=true) }}{{ m.content | length }}{{ '</s>' "
      "in "
      "m.content }}{{ m.content.split('s')[0] }}{{ 's>' }}{% endfor %}");
  const RenderedChat rendered = json.render(chat_of({"\xEF\xB7\x90</s>"}), {});
  EXPECT_EQ(rendered.text, "\"\\ufdd0</s>\"5True\xEF\xB7\x90</s>");
  EXPECT_THAT(rendered.barriers, ::testing::ElementsAre(8, 21)) << "the second is the user's in part";
}

}  // namespace
}  // namespace tessera
