#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/settings/foreign_datasets_fixture.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Pair = std::pair<std::string, std::string>;

class AxolotlDatasetsTest : public ForeignDatasetsTest {
 protected:
  // The format of a single data set with these keys.
  RowFormat format(const std::string& keys) const {
    return options("datasets:\n  - {path: a.jsonl, " + keys + "}\n").sources.at(0).format;
  }
  std::string refusal_of(const std::string& keys) const {
    return refusal("datasets:\n  - {path: a.jsonl, " + keys + "}\n");
  }
};

TEST_F(AxolotlDatasetsTest, AxolotlsListOfDatasets) {
  const DatasetOptions found = options(R"(
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
  - path: org/chats
    name: en
    split: train[10%:]
    type: chat_template
    field_messages: dialog
    message_property_mappings: {role: speaker, content: text, reasoning_content: thoughts}
    roles: {user: [me], assistant: [bot9]}
    roles_to_train: [bot9, tool]
    train_on_eos: last
  - path: json
    data_files: [a.jsonl, b.jsonl]
    type: completion
    field: body
val_set_size: 0
train_on_inputs: false
)");
  ASSERT_EQ(found.sources.size(), 4u);
  EXPECT_EQ(found.sources[0].format.shape, RowShape::kPromptText);
  EXPECT_THAT(found.sources[1].paths, ElementsAre("org/chats:en/train"));
  const RowFormat& chats = found.sources[1].format;
  EXPECT_EQ(chats.rows, (RowSlice{10, std::nullopt, true}));
  EXPECT_EQ(chats.shape, RowShape::kMessages);
  EXPECT_THAT(chats.columns, ElementsAre(Pair("messages", "dialog")));
  EXPECT_THAT(
      chats.tags.properties,
      ElementsAre(Pair("content", "text"), Pair("reasoning_content", "thoughts"), Pair("role", "speaker")));
  EXPECT_THAT(chats.tags.roles, ElementsAre(Pair("bot9", "assistant"), Pair("me", "user")));
  ASSERT_TRUE(chats.turns);
  EXPECT_THAT(chats.turns->roles, ElementsAre("assistant", "tool"));
  EXPECT_EQ(chats.turns->eos, EndTargets::kLast);
  EXPECT_EQ(chats.turns->eot, EndTargets::kLast) << "train_on_eot defaults to train_on_eos";
  EXPECT_THAT(found.sources[3].paths, ElementsAre("b.jsonl"));
  EXPECT_THAT(found.sources[3].format.columns, ElementsAre(Pair("text", "body")));
  EXPECT_FALSE(found.train_on_prompt);
}

TEST_F(AxolotlDatasetsTest, RulesForTargetsHaveAxolotlsDefaults) {
  const TurnTargets turns = *format("type: chat_template, roles_to_train: null, train_on_eos: null").turns;
  EXPECT_EQ(turns, TurnTargets());
  EXPECT_THAT(format("type: chat_template, roles_to_train: []").turns->roles, IsEmpty());
  EXPECT_THAT(format("type: chat_template, roles_to_train: [human, gpt]").turns->roles,
              ElementsAre("user", "assistant"));
  EXPECT_EQ(*format("type: chat_template, message_field_training_detail: d, split_thinking: true, "
                    "template_thinking_key: t")
                 .turns,
            (TurnTargets{.detail_field = "d", .thinking_field = "t", .splits_thoughts = true}));
  const RowFormat whole =
      options(
          "train_on_inputs: true\neot_tokens: ['<|e|>']\nchat_template_kwargs: {think: false}\n"
          "datasets:\n  - {path: a, type: chat_template, train_on_eot: none, "
          "message_field_training: t, drop_system_message: true}\n")
          .sources.at(0)
          .format;
  EXPECT_EQ(*whole.turns, (TurnTargets{.all_roles = true,
                                       .eot = EndTargets::kNone,
                                       .eot_tokens = {"<|e|>"},
                                       .training_field = "t",
                                       .drop_system = true}));
  EXPECT_EQ(whole.variables, R"({"think":false})");
}

TEST_F(AxolotlDatasetsTest, PromptStylesHaveTheirOwnText) {
  const PromptText alpaca = *format("type: alpaca").prompt;
  const std::string none;
  EXPECT_EQ(
      alpaca.render("Add.", "1 2", &none),
      "Below is an instruction that describes a task, paired with an input that provides further context. "
      "Write a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### "
      "Input:\n1 2\n\n### Response:\n");
  EXPECT_EQ(
      alpaca.render("Go", "", nullptr),
      "Below is an instruction that describes a task. Write a response that appropriately completes the "
      "request.\n\n### Instruction:\nGo\n\n### Response:\n");
  EXPECT_EQ(format("type: 'alpaca:phi'").prompt->render("Add.", "1 2", nullptr),
            "<|system|>\nBelow is an instruction that describes a task, paired with an input that provides "
            "further context. Write a response that appropriately completes the "
            "request.<|end|>\n<|user|>\nAdd.<|end|>1 2<|assistant|>");
  EXPECT_EQ(format("type: alpaca_chat, conversation: chatml").prompt->render("Go", "", nullptr),
            "<|im_start|>system\nBelow is an instruction that describes a task. Write a response that "
            "appropriately completes the request.<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n<|im_start|>"
            "assistant\n");
  EXPECT_EQ(format("type: alpaca_chat.load_no_prompt").prompt->render("Add.", "1 2", nullptr),
            "USER: Add.\n1 2\nASSISTANT:");
  const RowFormat questions = format("type: alpaca_chat.load_qa");
  EXPECT_EQ(
      questions.prompt->render("I", "", nullptr),
      "SYSTEM: Below is an instruction from a USER that describes a task. The ASSISTANT writes a response "
      "that appropriately and concisely completes the request.\n\n\nUSER: I\nASSISTANT:");
  EXPECT_THAT(questions.columns, ::testing::Contains(Pair("output", "answer")));
  const std::string system = "S";
  EXPECT_EQ(format("type: alpaca_w_system.load_instruct").prompt->render("I", "N", &system),
            "S\n\n### Instruction:\nI\n\n### Input:\nN\n\n### Response:\n");
  EXPECT_EQ(format("type: alpaca_w_system.load_open_orca").prompt->render("Q", "", &system),
            "### System:\nS\n### Human:\nQ\n### Assistant:\n");
  EXPECT_EQ(format("type: alpaca_w_system").prompt->render("I", "N", &none), "USER: I\nN\nASSISTANT:");
  EXPECT_EQ(format("type: summarizetldr").prompt->render("I", "", nullptr),
            "USER: Summarize the following article as a TL;DR.\nI\nASSISTANT:");
}

TEST_F(AxolotlDatasetsTest, APromptOfItsOwnHasItsFormats) {
  const RowFormat own =
      format("type: {format: '[I]{instruction} {input}[/I]', system_prompt: P, field_output: o}");
  EXPECT_EQ(own.prompt->render("q", "x", nullptr), "P[I]q x[/I]");
  EXPECT_EQ(own.prompt->render("q", "", nullptr), "Pq ") << "no_input_format has a default of its own";
  EXPECT_THAT(own.columns, ElementsAre(Pair("output", "o")));
  EXPECT_THAT(refusal_of("type: {format: '{instruction} {other}'}"),
              HasSubstr("type: format: found {other}, expected {instruction} or {input}"));
  EXPECT_THAT(refusal_of("type: {formt: x}"), HasSubstr("type: 'formt': expected one of system_prompt"));
}

TEST_F(AxolotlDatasetsTest, OneTemplateServesAllConversations) {
  const auto chat_template = [&](const std::string& yaml) { return apply(yaml).data.chat_template; };
  EXPECT_EQ(
      chat_template("datasets:\n  - {path: a, type: chat_template, chat_template: tokenizer_default}\n"), "");
  EXPECT_EQ(chat_template("chat_template: chatml\ndatasets:\n  - {path: a, type: chat_template, "
                          "chat_template: tokenizer_default}\n"),
            "chatml");
  EXPECT_EQ(
      chat_template("chat_template: jinja\nchat_template_jinja: t.jinja\ndatasets:\n  - {path: a, type: "
                    "chat_template}\n"),
      "t.jinja");
  EXPECT_EQ(chat_template("datasets:\n  - {path: a, type: chat_template, chat_template: llama3}\n"),
            "llama3");
  EXPECT_THAT(
      refusal("datasets:\n  - {path: a, type: chat_template, chat_template: llama3}\n  - {path: b, type: "
              "chat_template}\n"),
      HasSubstr("expected one for all data sets"));
  EXPECT_EQ(chat_template("chat_template: gemma\ndatasets:\n  - {path: a, type: chat_template}\n"),
            "axolotl:gemma");
  EXPECT_EQ(chat_template("datasets:\n  - {path: a, type: chat_template, "
                          "chat_template: tokenizer_default_fallback_phi_35}\n"),
            "tokenizer_default_fallback_axolotl:phi_35");
  EXPECT_THAT(refusal_of("type: chat_template, chat_template: command_a"),
              HasSubstr("command_a is not built in (chatml, llama3, alpaca, "));
}

TEST_F(AxolotlDatasetsTest, WhatAxolotlHasAndIsMissingHereIsNamed) {
  EXPECT_THAT(
      refusal_of("type: pygmalion"),
      HasSubstr("run.yaml:1: datasets: the type \"pygmalion\" is not supported: expected chat_template"));
  EXPECT_THAT(refusal_of("type: alpaca, shards: 10"), HasSubstr("datasets: shards: write split"));
  EXPECT_THAT(refusal("datasets:\n  - {type: alpaca}\n"), HasSubstr("expected 'path' in every entry"));
  EXPECT_THAT(refusal_of("type: chat_template, roles_to_train: user"),
              HasSubstr("roles_to_train: expected a list of texts"));
  EXPECT_THAT(refusal_of("type: chat_template, train_on_eos: yes"),
              HasSubstr("expected turn, all, last or none"));
  EXPECT_THAT(refusal_of("type: chat_template, conversation: vicuna_v1.1"), HasSubstr("set chat_template"));
  EXPECT_THAT(refusal_of("type: alpaca, splitt: train"),
              HasSubstr("'splitt' is no key of Axolotl's data sets"));
  EXPECT_THAT(refusal_of("type: alpaca, split: 'train+test'"), HasSubstr("split: expected a name"));
  EXPECT_THAT(refusal("base_model: m\nval_set_size: 200\n"),
              HasSubstr("run.yaml:2: val_set_size: expected a share of the rows"));
}

TEST_F(AxolotlDatasetsTest, FilesAreReadAsTheLibraryReadsThem) {
  const std::string text = folder_.write("a.txt", "x\ny\n").string();
  const std::string start = "datasets:\n  - {path: " + text + ", type: completion";
  EXPECT_TRUE(options(start + "}\n").sources[0].format.has_lines);
  EXPECT_THAT(refusal(start + ", ds_type: json}\n"), HasSubstr("a file is read as its name says"));
  EXPECT_THAT(refusal(start + ", split: test}\n"), HasSubstr("its only split is train"));
  EXPECT_EQ(options(start + ", split: 'train[:1]'}\n").sources.at(0).format.rows,
            (RowSlice{std::nullopt, 1, false}));
}

}  // namespace
}  // namespace tessera
