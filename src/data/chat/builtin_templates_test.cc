#include "data/chat/builtin_templates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "expect_error.h"
#include "formats/value_json.h"
#include "jinja/template.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

struct Rendered {
  const char* name;
  const char* text;
};

// Output of Jinja in Python for the same templates.
constexpr Rendered kRendered[] = {
    {"alpaca",
     "<s>SYS\n\n### Instruction:\n hi\n\n\n### Response:\nyo </s>\n\n### Instruction:\nb\n\n### "
     "Response:\nc</s>"},
    {"aya",
     "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>SYS<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>"
     "hi<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>yo<|END_OF_TURN_TOKEN|><|START_OF_TURN_"
     "TOKEN|><|USER_TOKEN|>b<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>c<|END_OF_TURN_"
     "TOKEN|>"},
    {"cohere",
     "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>SYS<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>"
     "hi<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>yo<|END_OF_TURN_TOKEN|><|START_OF_TURN_"
     "TOKEN|><|USER_TOKEN|>b<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>c<|END_OF_TURN_"
     "TOKEN|>"},
    {"deepseek_v2", "<s>SYS\n\n<｜User｜> hi\n<｜Assistant｜>yo </s><｜User｜>b<｜Assistant｜>c</s>"},
    {"exaone",
     "[|system|]SYS[|endofturn|]\n[|user|] hi\n\n[|assistant|]yo "
     "[|endofturn|]\n[|user|]b\n[|assistant|]c[|endofturn|]\n"},
    {"falcon_h1",
     "<s><|im_start|>system\nSYS<|im_end|>\n<|im_start|>user\n hi\n<|im_end|>\n<|im_start|>assistant\nyo "
     "<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n"},
    {"gemma",
     "<s><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\nyo<end_of_turn>\n<start_of_turn>user\nb<"
     "end_of_turn>\n<start_of_turn>model\nc<end_of_turn>\n"},
    {"gemma3",
     "<s><start_of_turn>user\nSYS\n\nhi<end_of_turn>\n<start_of_turn>model\nyo<end_of_turn>\n<start_of_turn>"
     "user\nb<end_of_turn>\n<start_of_turn>model\nc<end_of_turn>\n"},
    {"metharme", "<s><|system|>SYS<|user|>hi<|model|>yo<|user|>b<|model|>c</s>"},
    {"mistral_v1", "<s> [INST] SYS\n\n hi\n [/INST] yo </s> [INST] b [/INST] c</s>"},
    {"mistral_v7_tekken",
     "<s>[SYSTEM_PROMPT]SYS[/SYSTEM_PROMPT][INST] hi\n[/INST]yo </s>[INST]b[/INST]c</s>"},
    {"nemotron_h",
     "<|im_start|>system\nSYS<|im_end|>\n<|im_start|>user\n hi\n<|im_end|>\n<|im_start|>assistant\nyo "
     "<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n"},
    {"phi_3",
     "<s><|system|>\nSYS<|end|>\n<|user|>\n hi\n<|end|>\n<|assistant|>\nyo "
     "<|end|>\n<|user|>\nb<|end|>\n<|assistant|>\nc<|end|>\n"},
    {"phi_35",
     "<|system|>\nSYS<|end|>\n<|user|>\n hi\n<|end|>\n<|assistant|>\nyo "
     "<|end|>\n<|user|>\nb<|end|>\n<|assistant|>\nc<|end|>\n"},
    {"phi_4",
     "<|im_start|>system<|im_sep|>SYS<|im_end|><|im_start|>user<|im_sep|> "
     "hi\n<|im_end|><|im_start|>assistant<|im_sep|>yo "
     "<|im_end|><|im_start|>user<|im_sep|>b<|im_end|><|im_start|>assistant<|im_sep|>c<|im_end|>"},
    {"qwen3",
     "<|im_start|>system\nSYS<|im_end|>\n<|im_start|>user\n hi\n<|im_end|>\n<|im_start|>assistant\nyo "
     "<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n<think>\n\n</"
     "think>\n\nc<|im_end|>\n"},
    {"qwen_25",
     "<|im_start|>system\nSYS<|im_end|>\n<|im_start|>user\n hi\n<|im_end|>\n<|im_start|>assistant\nyo "
     "<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n"},
};

TEST(AxolotlTemplate, WritesWhatAxolotlWrites) {
  const std::string talk =
      R"({"role": "user", "content": " hi\n"}, {"role": "assistant", "content": "yo "},
         {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}])";
  for (const Rendered& expected : kRendered) {
    const std::string name = expected.name;
    const bool takes_system = name != "gemma";
    const std::string messages = (takes_system ? R"([{"role": "system", "content": "SYS"}, )" : "[") + talk;
    const jinja::Template parsed = jinja::Template::parse(builtin_chat_template("axolotl:" + name), name);
    EXPECT_EQ(parsed
                  .render({{"bos_token", "<s>"},
                           {"eos_token", "</s>"},
                           {"add_generation_prompt", false},
                           {"tools", nullptr},
                           {"messages", parse_value(messages, "messages")}},
                          {})
                  .text,
              expected.text)
        << name;
  }
  EXPECT_EQ(std::size(kRendered), builtin_chat_template_names(kAxolotlPrefix).size());
  EXPECT_EQ(builtin_chat_template("axolotl:other"), "");
}

// Renders messages and tools, which are JSON.
std::string text_in_template(const std::string& name, const std::string& messages,
                             const std::string& tools = "null") {
  const jinja::Template parsed = jinja::Template::parse(builtin_chat_template("llama_factory:" + name), name);
  return parsed
      .render({{"bos_token", "<s>"},
               {"eos_token", "</s>"},
               {"tools", parse_value(tools, "tools")},
               {"messages", parse_value(messages, "messages")}},
              {})
      .text;
}

// Compares with Template.encode_multiturn() of LLaMA-Factory 0.9.5.
TEST(LlamaFactoryTemplate, WritesWhatLlamaFactoryWrites) {
  const std::string turn =
      R"([{"role": "user", "content": " hi\n"}, {"role": "assistant", "content": "yo "}])";
  EXPECT_EQ(
      text_in_template("qwen3", turn),
      "<|im_start|>user\n hi\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nyo <|im_end|>\n");
  EXPECT_EQ(
      text_in_template("alpaca", turn),
      "Below is an instruction that describes a task. Write a response that appropriately completes the "
      "request.\n\n### Instruction:\n hi\n\n\n### Response:\nyo </s>\n\n");
  EXPECT_EQ(text_in_template("deepseekr1", turn),
            "<s><｜User｜> hi\n<｜Assistant｜><think>\n\n</think>\n\nyo </s>");
  const std::string talk =
      R"([{"role": "system", "content": "SYS"}, {"role": "user", "content": "hi"},
          {"role": "assistant", "content": "<think>\nt\n</think>\n\nyo"}, {"role": "user", "content": "b"},
          {"role": "assistant", "content": "c"}])";
  EXPECT_EQ(
      text_in_template("llama3", talk),
      "<s><|start_header_id|>system<|end_header_id|>\n\nSYS<|eot_id|><|start_header_id|>user<|end_header_id|>"
      "\n\nhi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n<think>\nt\n</think>\n\nyo<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nb<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
      "\n\nc<|eot_id|>");
  EXPECT_EQ(
      text_in_template("llama2", talk),
      "<s>[INST] <<SYS>>\nSYS\n<</SYS>>\n\nhi [/INST]<think>\nt\n</think>\n\nyo</s><s>[INST] b [/INST]c</s>");
  EXPECT_EQ(text_in_template("gemma", talk),
            "<s><start_of_turn>user\nSYS\n\nhi<end_of_turn>\n<start_of_turn>model\n<think>\nt\n</think>\n\nyo"
            "<end_of_turn>\n<start_of_turn>user\nb<end_of_turn>\n<start_of_turn>model\nc<end_of_turn>\n");
}

TEST(LlamaFactoryTemplate, WithoutThinkingThePromptHasAnEmptyThought) {
  const std::string talk =
      R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>\nt\n</think>\n\nyo"},
          {"role": "user", "content": "b"}, {"role": "assistant", "content": "\nc"},
          {"role": "user", "content": "d"},
          {"role": "assistant", "content": "A<think>\nB<think>\nC\n</think>\n\nD</think>"},
          {"role": "tool", "content": "r"}, {"role": "assistant", "content": "<think>\nopen"}])";
  EXPECT_EQ(text_in_template("qwen3/enable_thinking=false", talk),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nyo<|im_end|>\n"
            "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nc<|im_end|>\n"
            "<|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\nAD</think><|im_end|>\n"
            "<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
            "<think>\nopen<|im_end|>\n");
  EXPECT_EQ(text_in_template("deepseekr1/enable_thinking=false", talk),
            "<s><｜User｜>hi<｜Assistant｜><think>\n\n</think>\n\nyo</s>"
            "<｜User｜>b<｜Assistant｜><think>\n\n</think>\n\nc</s><｜User｜>d<｜Assistant｜>AD</think></s>"
            "<｜User｜>r<｜Assistant｜><think>\nopen</s>");
}

TEST(LlamaFactoryTemplate, QwensWriteToolsAsLlamaFactoryDoes) {
  EXPECT_EQ(text_in_template("qwen",
                             R"([{"role": "system", "content": "SYS"}, {"role": "user", "content": "hi"},
              {"role": "assistant", "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": "x'é"}}},
                {"type": "function", "function": {"name": "g", "arguments": {}}}]},
              {"role": "tool", "content": "{\"t\": 3}"}, {"role": "tool", "content": "r2"},
              {"role": "assistant", "content": "ok"}])",
                             R"([{"type": "function", "function": {"name": "f", "description": "d"}}])"),
            "<|im_start|>system\nSYS\n\n# Tools\n\nYou may call one or more functions to assist with the "
            "user query.\n\nYou "
            "are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{\"type\": "
            "\"function\", "
            "\"function\": {\"name\": \"f\", \"description\": \"d\"}}\n</tools>\n\nFor each function call, "
            "return a json "
            "object with function name and arguments within <tool_call></tool_call> XML "
            "tags:\n<tool_call>\n{\"name\": "
            "<function-name>, \"arguments\": "
            "<args-json-object>}\n</tool_call><|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
            "<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": "
            "\"x'é\"}}\n</tool_call>\n"
            "<tool_call>\n{\"name\": \"g\", \"arguments\": "
            "{}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n"
            "{\"t\": "
            "3}\n</tool_response>\n<tool_response>\nr2\n</tool_response><|im_end|>\n<|im_start|>assistant\nok"
            "<|im_end|>\n");
}

TEST(LlamaFactoryTemplate, WithoutAFormForToolsRefusesThem) {
  const std::string talk = R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}])";
  const std::string call =
      R"([{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}])";
  for (const std::string& name : builtin_chat_template_names(kLlamaFactoryPrefix)) {
    EXPECT_THAT(text_in_template(name, talk), HasSubstr("yo")) << name;
    if (name.starts_with("qwen")) continue;
    EXPECT_THAT(error_of([&] { text_in_template(name, talk, "[{}]"); }).what(),
                HasSubstr("no form for tools"));
    EXPECT_THAT(error_of([&] { text_in_template(name, call); }).what(), HasSubstr("no form for tools"));
  }
  for (const char* none :
       {"llama_factory:other", "llama_factory:qwen/enable_thinking=false", "parts:llama_factory"})
    EXPECT_EQ(builtin_chat_template(none), "") << none;
  EXPECT_EQ(builtin_chat_template_names(), (std::vector<std::string>{"chatml", "llama3"}));
}

}  // namespace
}  // namespace tessera
