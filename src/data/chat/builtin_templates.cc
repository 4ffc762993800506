#include "data/chat/builtin_templates.h"

#include <algorithm>

#include "base/embedded_text.h"

namespace tessera {

std::span<const EmbeddedText> template_texts();  // data/chat/templates

namespace {

// The name of a file of templates/ as users write it: axolotl:gemma of axolotl/gemma.
std::string template_name(std::string_view file) {
  std::string name(file);
  std::replace(name.begin(), name.end(), '/', ':');
  return name;
}

// One of LLaMA-Factory's: its own file sets what differs, and a common one writes the conversation.
std::string llama_factory_template(std::string_view settings, bool without_thinking) {
  if (without_thinking && settings.find("set has_thoughts") == std::string_view::npos) return "";
  std::string out(without_thinking ? "{%- set without_thinking = true %}\n" : "");
  out += settings;
  return out += text_named(template_texts(), "parts/llama_factory");
}

}  // namespace

std::string builtin_chat_template(std::string_view name) {
  const bool is_llama_factory = name.starts_with(kLlamaFactoryPrefix);
  const bool without_thinking = is_llama_factory && name.ends_with(kWithoutThinking);
  if (without_thinking) name.remove_suffix(kWithoutThinking.size());
  for (const EmbeddedText& entry : template_texts()) {
    if (template_name(entry.name) != name || entry.name.starts_with("parts/")) continue;
    return is_llama_factory ? llama_factory_template(entry.text, without_thinking) : std::string(entry.text);
  }
  return "";
}

std::vector<std::string> builtin_chat_template_names(std::string_view prefix) {
  std::vector<std::string> names;
  for (const EmbeddedText& entry : template_texts()) {
    std::string name = template_name(entry.name);
    if (name.starts_with(prefix) && name.find(':', prefix.size()) == std::string::npos)
      names.push_back(name.substr(prefix.size()));
  }
  return names;
}

}  // namespace tessera
