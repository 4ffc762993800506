// Chat templates for models that have none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Before the names of LLaMA-Factory's templates: llama_factory:qwen.
inline constexpr std::string_view kLlamaFactoryPrefix = "llama_factory:";

// Before the names of Axolotl's: axolotl:gemma.
inline constexpr std::string_view kAxolotlPrefix = "axolotl:";

// "" if there is none of this name.
std::string_view builtin_chat_template(std::string_view name);
std::vector<std::string> builtin_chat_template_names();  // without LLaMA-Factory's and Axolotl's

}  // namespace tessera
