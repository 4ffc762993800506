// The templates that `template` names in LLaMA-Factory's configuration files (data/template.py of
// LLaMA-Factory 0.9.5), as Jinja.
#pragma once

#include <string_view>
#include <vector>

namespace tessera {

// Behind the name of a template for reasoning, with enable_thinking false.
constexpr const char* kLlamaFactoryNoThinking = "/enable_thinking=false";

// "" if there is none of this name: qwen, llama3, ... Each writes the header of the answer behind every
// question.
std::string_view llama_factory_template(std::string_view name);
std::vector<std::string_view> llama_factory_template_names();

}  // namespace tessera
