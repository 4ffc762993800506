#include "data/chat/builtin_templates.h"

#include "data/chat/axolotl_templates.h"
#include "data/chat/llama_factory_templates.h"

namespace tessera {
namespace {

struct BuiltIn {
  std::string_view name;
  std::string_view source;
};

constexpr BuiltIn kTemplates[] = {
    // OpenAI's ChatML, as Qwen and many others use it.
    {"chatml",
     "{%- if tools %}\n"
     "  {{- raise_exception('chatml has no form for tools: give a chat template that has') }}\n"
     "{%- endif %}\n"
     "{%- for message in messages %}\n"
     "  {%- if message.tool_calls %}{{ raise_exception('this chat template has no place for tool calls') "
     "}}{% endif %}\n"
     "  {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}\n"
     "{%- endfor %}\n"
     "{%- if add_generation_prompt %}\n"
     "  {{- '<|im_start|>assistant\\n' }}\n"
     "{%- endif %}\n"},
    // The dialog format of Llama 3's model card.
    {"llama3",
     "{%- if tools %}\n"
     "  {{- raise_exception('llama3 has no form for tools: give a chat template that has') }}\n"
     "{%- endif %}\n"
     "{{- bos_token }}\n"
     "{%- for message in messages %}\n"
     "  {%- if message.tool_calls %}{{ raise_exception('this chat template has no place for tool calls') "
     "}}{% endif %}\n"
     "  {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}\n"
     "  {{- message['content'] | trim }}\n"
     "  {{- '<|eot_id|>' }}\n"
     "{%- endfor %}\n"
     "{%- if add_generation_prompt %}\n"
     "  {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n"
     "{%- endif %}\n"},
};

}  // namespace

std::string_view builtin_chat_template(std::string_view name) {
  if (name.starts_with(kLlamaFactoryPrefix))
    return llama_factory_template(name.substr(kLlamaFactoryPrefix.size()));
  if (name.starts_with(kAxolotlPrefix)) return axolotl_template(name.substr(kAxolotlPrefix.size()));
  for (const BuiltIn& entry : kTemplates) {
    if (entry.name == name) return entry.source;
  }
  return {};
}

std::vector<std::string> builtin_chat_template_names() {
  std::vector<std::string> names;
  for (const BuiltIn& entry : kTemplates) names.emplace_back(entry.name);
  return names;
}

}  // namespace tessera
