#include "data/chat/axolotl_templates.h"

#include <gtest/gtest.h>

#include <string>

#include "data/chat/builtin_templates.h"
#include "formats/value_json.h"
#include "jinja/template.h"

namespace tessera {
namespace {

struct Rendered {
  const char* name;
  const char* text;
};

// What Jinja in Python writes for the same templates.
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
    const jinja::Template parsed = jinja::Template::parse(std::string(axolotl_template(name)), name);
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
  EXPECT_EQ(std::size(kRendered), axolotl_template_names().size());
  EXPECT_EQ(builtin_chat_template("axolotl:gemma"), axolotl_template("gemma"));
  EXPECT_EQ(axolotl_template("other"), "");
}

}  // namespace
}  // namespace tessera
