#include "data/chat/modelfile.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/chat_template.h"
#include "data/chat/messages.h"

namespace tessera {
namespace {

using Turns = std::vector<std::pair<std::string, std::string>>;

// A way to write conversations, in Ollama's language: a turn, and what begins the answer.
struct Style {
  std::string_view turn, prompt;
};
constexpr std::string_view kRole = "{{ .Role }}", kContent = "{{ .Content }}";
constexpr Style kStyles[] = {
    {"<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n", "<|im_start|>assistant\n"},
    {"<|start_header_id|>{{ .Role }}<|end_header_id|>\n\n{{ .Content }}<|eot_id|>",
     "<|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"<|{{ .Role }}|>\n{{ .Content }}</s>\n", "<|assistant|>\n"},
};

std::string written(const Style& style, const Turns& turns) {
  std::string text;
  for (const auto& [role, content] : turns) {
    std::string turn(style.turn);
    turn.replace(turn.find(kContent), kContent.size(), content);
    text += turn.replace(turn.find(kRole), kRole.size(), role);
  }
  return text.append(style.prompt);
}

// What the model's template makes of a conversation, without the token that Ollama puts before a text.
std::string rendered(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const Turns& turns) {
  ChatExample chat;
  for (const auto& [role, content] : turns) add_message(role, content, &chat.messages);
  std::string text = chat_template.render(chat, {.add_generation_prompt = true}).text;
  if (!tokenizer.bos_id()) return text;
  const std::string bos = tokenizer.id_to_token(static_cast<int32_t>(*tokenizer.bos_id()));
  return text.starts_with(bos) ? text.substr(bos.size()) : text;
}

std::optional<std::string> ollama_template(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  const std::vector<Turns> conversations = {
      {{"user", "One"}}, {{"system", "Zero"}, {"user", "One"}, {"assistant", "Two"}, {"user", "Three"}}};
  for (const Style& style : kStyles) {
    const auto is_same = [&](const Turns& turns) {
      try {
        return rendered(chat_template, tokenizer, turns) == written(style, turns);
      } catch (const Error&) {  // the template refuses such a conversation
        return false;
      }
    };
    if (std::ranges::all_of(conversations, is_same))
      return fmt::format("{{{{- range .Messages }}}}{}{{{{ end }}}}{}", style.turn, style.prompt);
  }
  return std::nullopt;
}

// Whether the template has a form for tools.
bool has_tools(const ChatTemplate& chat_template) {
  ChatExample chat;
  add_message("user", "One", &chat.messages);
  try {
    const std::string without = chat_template.render(chat, {.add_generation_prompt = true}).text;
    const Value::Object parameters = {{"type", "object"}, {"properties", Value::Object()}};
    const Value::Object function = {
        {"name", "look_up"}, {"description", "Looks up."}, {"parameters", parameters}};
    Value::List tools;
    tools.emplace_back(Value::Object{{"type", "function"}, {"function", function}});
    chat.tools = std::move(tools);
    return chat_template.render(chat, {.add_generation_prompt = true}).text != without;
  } catch (const Error&) {  // it refuses tools
    return false;
  }
}

// In a text between quotes of a Modelfile.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

Modelfile ollama_modelfile(const std::string& gguf_name, const std::filesystem::path& folder,
                           const Tokenizer& tokenizer, const std::vector<int64_t>& end_ids) {
  std::string text = fmt::format("FROM ./{}\n", gguf_name);
  std::string warning;
  std::vector<int64_t> ends = end_ids;
  if (tokenizer.eos_id()) ends.push_back(*tokenizer.eos_id());
  if (has_chat_template(folder)) {
    const ChatTemplate chat_template = ChatTemplate::load(folder, tokenizer);
    if (const auto found = ollama_template(chat_template, tokenizer)) {
      text += fmt::format("TEMPLATE \"\"\"{}\"\"\"\n", *found);
      if (has_tools(chat_template)) {
        text +=
            "# Without the chat template's form for tools, so that Ollama gives the model none. The template "
            "is "
            "in the\n# GGUF file (tokenizer.chat_template), in Jinja.\n";
        warning =
            "the Modelfile has no form for tools, although the chat template has one: Ollama will give the "
            "model "
            "no tools unless you write {{ .Tools }} and {{ .ToolCalls }} into its TEMPLATE";
      }
    } else {
      warning =
          "the Modelfile has no TEMPLATE, as the chat template is none of those that are known in Ollama's "
          "language: Ollama takes its own if it knows this template, else gives texts to the model as they "
          "are";
      text +=
          "# The chat template is in the GGUF file (tokenizer.chat_template), in Jinja. Ollama uses it if it "
          "knows\n"
          "# this template; otherwise write it here in Ollama's language, or texts go to the model as they "
          "are:\n"
          "# TEMPLATE \"\"\"...\"\"\"\n";
    }
    if (const auto end = chat_template.end_of_answer(tokenizer)) ends.push_back(*end);
  } else {
    text +=
        "# The model has no chat template: texts go to it as they are.\nTEMPLATE \"\"\"{{ .Prompt }}\"\"\"\n";
  }
  std::vector<int64_t> written;
  for (const int64_t id : ends) {
    if (std::ranges::find(written, id) != written.end()) continue;
    written.push_back(id);
    text += fmt::format("PARAMETER stop {}\n", quoted(tokenizer.id_to_token(static_cast<int32_t>(id))));
  }
  return {std::move(text), std::move(warning)};
}

}  // namespace tessera
