// Chat templates that are parts of the program, the files of templates/: OpenAI's ChatML and Llama 3's for
// models that have none, those that `chat_template` names in Axolotl's configuration files
// (utils/chat_templates/templates of 0.19, Apache 2.0: rows have to be the same to the letter), and those
// that `template` names in LLaMA-Factory's (data/template.py of 0.9.5).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Before the names of LLaMA-Factory's templates and Axolotl's: llama_factory:qwen, axolotl:gemma.
inline constexpr std::string_view kLlamaFactoryPrefix = "llama_factory:";
inline constexpr std::string_view kAxolotlPrefix = "axolotl:";

// After the name of one of LLaMA-Factory's templates for reasoning, with enable_thinking false.
inline constexpr std::string_view kWithoutThinking = "/enable_thinking=false";

// "" if there is none of this name.
std::string builtin_chat_template(std::string_view name);
// The names that begin with a prefix, without it; "": those that have none.
std::vector<std::string> builtin_chat_template_names(std::string_view prefix = "");

}  // namespace tessera
