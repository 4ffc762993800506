#include "data/chat/llama_factory_templates.h"

#include <fmt/format.h>

#include <map>
#include <string>

namespace tessera {
namespace {

// kThoughts begin answers without a thought with an empty one; with kNoThoughts (enable_thinking false)
// answers lose theirs, and the empty one is a part of the prompt.
enum class Style { kPlain, kSystemInQuestion, kThoughts, kNoThoughts };

// In the formats, {C} is the content, {B} and {E} are the tokenizer's tokens of begin and end of text.
struct Format {
  const char* name;
  const char* prefix;
  const char* system;
  const char* user;
  const char* assistant;
  const char* tool;  // nullptr: as the user's
  const char* default_system = "";
  Style style = Style::kPlain;
  bool has_qwen_tools = false;
};

constexpr const char* kChatMlSystem = "<|im_start|>system\n{C}<|im_end|>\n";
constexpr const char* kChatMlUser = "<|im_start|>user\n{C}<|im_end|>\n<|im_start|>assistant\n";
constexpr const char* kChatMlTool = "<|im_start|>tool\n{C}<|im_end|>\n<|im_start|>assistant\n";
constexpr const char* kChatMlAnswer = "{C}<|im_end|>\n";
constexpr const char* kQwenTool =
    "<|im_start|>user\n<tool_response>\n{C}\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
constexpr const char* kGemmaUser = "<start_of_turn>user\n{C}<end_of_turn>\n<start_of_turn>model\n";
constexpr const char* kGemmaTool = "<start_of_turn>tool\n{C}<end_of_turn>\n<start_of_turn>model\n";
constexpr const char* kGemmaAnswer = "{C}<end_of_turn>\n";

constexpr Format kFormats[] = {
    {"alpaca", "", "{C}", "### Instruction:\n{C}\n\n### Response:\n", "{C}{E}\n\n", nullptr,
     "Below is an instruction that describes a task. Write a response that appropriately completes the "
     "request.\n\n"},
    {"chatml", "", kChatMlSystem, kChatMlUser, kChatMlAnswer, kChatMlTool},
    {"default", "", "System: {C}{E}\n", "Human: {C}{E}\nAssistant:", "{C}{E}\n", nullptr},
    {"deepseek", "{B}", "{C}\n\n", "User: {C}\n\nAssistant:", "{C}{E}", nullptr},
    {"deepseek3", "{B}", "{C}", "<｜User｜>{C}<｜Assistant｜>", "{C}{E}", nullptr},
    {"deepseekr1", "{B}", "{C}", "<｜User｜>{C}<｜Assistant｜>", "{C}{E}", nullptr, "", Style::kThoughts},
    {"gemma", "{B}", "{C}\n\n", kGemmaUser, kGemmaAnswer, kGemmaTool, "", Style::kSystemInQuestion},
    {"gemma3", "{B}", "{C}\n\n", kGemmaUser, kGemmaAnswer, kGemmaTool, "", Style::kSystemInQuestion},
    {"llama2", "", "<<SYS>>\n{C}\n<</SYS>>\n\n", "{B}[INST] {C} [/INST]", "{C}{E}", nullptr, "",
     Style::kSystemInQuestion},
    {"llama3", "{B}", "<|start_header_id|>system<|end_header_id|>\n\n{C}<|eot_id|>",
     "<|start_header_id|>user<|end_header_id|>\n\n{C}<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
     "\n\n",
     "{C}<|eot_id|>",
     "<|start_header_id|>ipython<|end_header_id|>\n\n{C}<|eot_id|><|start_header_id|>assistant<|end_header_"
     "id|>\n\n"},
    {"mistral", "{B}", "{C}\n\n", "[INST] {C}[/INST]", " {C}{E}",
     R"([TOOL_RESULTS] {"content": {C}}[/TOOL_RESULTS])", "", Style::kSystemInQuestion},
    {"phi", "", "<|system|>\n{C}<|end|>\n", "<|user|>\n{C}<|end|>\n<|assistant|>\n", "{C}<|end|>\n", nullptr},
    {"phi4", "", "<|im_start|>system<|im_sep|>{C}<|im_end|>",
     "<|im_start|>user<|im_sep|>{C}<|im_end|><|im_start|>assistant<|im_sep|>", "{C}<|im_end|>", nullptr},
    {"qwen", "", kChatMlSystem, kChatMlUser, kChatMlAnswer, kQwenTool,
     "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", Style::kPlain, true},
    {"qwen3", "", kChatMlSystem, kChatMlUser, kChatMlAnswer, kQwenTool, "", Style::kThoughts, true},
    {"qwen3_nothink", "", kChatMlSystem, kChatMlUser, kChatMlAnswer, kQwenTool, "", Style::kPlain, true},
    {"smollm2", "", kChatMlSystem, kChatMlUser, kChatMlAnswer, nullptr,
     "You are a helpful AI assistant named SmolLM, trained by Hugging Face."},
    {"vicuna", "", "{C}", "USER: {C} ASSISTANT:", "{C}{E}", nullptr,
     "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
     "detailed, and polite answers to the user's questions."},
    {"yi", "", kChatMlSystem, kChatMlUser, kChatMlAnswer, nullptr},
    {"zephyr", "", "<|system|>\n{C}{E}", "<|user|>\n{C}{E}<|assistant|>\n", "{C}{E}", nullptr,
     "You are Zephyr, a helpful assistant."},
};

constexpr const char* kQwenTools =
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided "
    "with "
    "function signatures within <tools></tools> XML tags:\n<tools>";
constexpr const char* kQwenToolsEnd =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
    "<args-json-object>}\n</tool_call>";

std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '\'' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + "'";
}

// A Jinja expression for a format, whose content is the variable `content`.
std::string expression(std::string_view format, std::string_view content) {
  std::string out;
  const auto add = [&out](const std::string& part) { out += (out.empty() ? "" : " ~ ") + part; };
  while (!format.empty()) {
    const size_t at = format.find('{');
    const bool is_mark = at != std::string_view::npos && at + 2 < format.size() && format[at + 2] == '}';
    const size_t end = is_mark ? at : format.size();
    if (end > 0) add(quoted(format.substr(0, end)));
    if (!is_mark) break;
    add(format[at + 1] == 'C'   ? std::string(content)
        : format[at + 1] == 'B' ? "(bos_token or '')"
                                : "eos_token");
    format.remove_prefix(at + 3);
  }
  return out.empty() ? "''" : out;
}

std::string refusal(const Format& format) {
  return fmt::format(
      "{{{{- raise_exception('the template {} has no form for tools here: leave template out, so that the "
      "chat "
      "template of the model is used') }}}}",
      format.name);
}

// What opens a conversation: prefix, system message and tools.
std::string opening(const Format& format) {
  std::string out = fmt::format(
      "{{%- set bos_token = bos_token if bos_token is defined else '' %}}"
      "{{%- if messages[0]['role'] == 'system' %}}{{%- set system = messages[0]['content'] %}}"
      "{{%- set turns = messages[1:] %}}{{%- else %}}{{%- set system = {} %}}{{%- set turns = messages "
      "%}}{{%- endif %}}",
      quoted(format.default_system));
  if (format.has_qwen_tools) {
    out += fmt::format(
        "{{%- set ns = namespace(tools='') %}}{{%- if tools %}}{{%- for tool in tools %}}"
        "{{%- set ns.tools = ns.tools ~ '\\n' ~ (tool | tojson) %}}{{%- endfor %}}"
        "{{%- set system = system ~ {} ~ ns.tools ~ {} %}}{{%- endif %}}",
        quoted(kQwenTools), quoted(kQwenToolsEnd));
  } else {
    out += "{%- if tools %}" + refusal(format) + "{%- endif %}";
  }
  out += fmt::format("{{{{- {} }}}}", expression(format.prefix, "''"));
  if (format.style != Style::kSystemInQuestion)
    out += fmt::format("{{%- if system %}}{{{{- {} }}}}{{%- endif %}}", expression(format.system, "system"));
  return out;
}

// Removes everything from the first <think> to the next </think>, as re.sub() does in LLaMA-Factory's
// remove_thought().
constexpr const char* kWithoutThoughts =
    "{%- macro without_thoughts(text) -%}{%- set ns = namespace(text='', open='') -%}"
    "{%- for part in text.split('<think>\\n') -%}{%- if loop.first -%}{%- set ns.text = part -%}"
    "{%- elif '\\n</think>\\n\\n' in part -%}"
    "{%- set ns.text = ns.text ~ part.split('\\n</think>\\n\\n', 1)[1] -%}{%- set ns.open = '' -%}"
    "{%- else -%}{%- set ns.open = ns.open ~ '<think>\\n' ~ part -%}{%- endif -%}{%- endfor -%}"
    "{{- (ns.text ~ ns.open).lstrip('\\n') -}}{%- endmacro -%}";

// What the prompt of an answer ends in.
constexpr const char* kEmptyThought =
    "{%- set shown = without_thoughts(turns[loop.index0 + 1]['content'] or '') if not loop.last else '' %}"
    "{{- '<think>\\n\\n</think>\\n\\n' if '<think>' not in shown and '</think>' not in shown else '' }}";

// The text of an answer in `content`.
std::string answer(const Format& format) {
  std::string out = "{%- set content = message['content'] or '' %}";
  if (format.has_qwen_tools) {
    out +=
        "{%- set ns = namespace(calls='') %}{%- for call in message['tool_calls'] or [] %}"
        "{%- set ns.calls = ns.calls ~ ('' if loop.first else '\\n') ~ '<tool_call>\\n{\"name\": ' ~ "
        "(call['function']['name'] | tojson) ~ ', \"arguments\": ' ~ (call['function']['arguments'] | "
        "tojson) ~ "
        "'}\\n</tool_call>' %}{%- endfor %}{%- set content = content ~ ns.calls %}";
  } else {
    out += "{%- if message['tool_calls'] %}" + refusal(format) + "{%- endif %}";
  }
  if (format.style == Style::kNoThoughts) out += "{%- set content = without_thoughts(content) %}";
  if (format.style == Style::kThoughts) {
    out +=
        "{%- if '<think>' not in content and '</think>' not in content %}"
        "{%- set content = '<think>\\n\\n</think>\\n\\n' ~ content %}{%- endif %}";
  }
  return out;
}

std::string source_of(const Format& format) {
  const std::string_view tool = format.tool == nullptr ? format.user : format.tool;
  const size_t content = tool.find("{C}");
  const std::string thought = format.style == Style::kNoThoughts ? kEmptyThought : "";
  std::string out = format.style == Style::kNoThoughts ? kWithoutThoughts : "";
  out += opening(format) + "{%- for message in turns %}{%- if message['role'] == 'user' %}";
  if (format.style == Style::kSystemInQuestion) {
    out += fmt::format(
        "{{%- set content = message['content'] %}}{{%- if loop.first and system %}}"
        "{{%- set content = ({}) ~ content %}}{{%- endif %}}{{{{- {} }}}}",
        expression(format.system, "system"), expression(format.user, "content"));
  } else {
    out += fmt::format("{{{{- {} }}}}", expression(format.user, "message['content']")) + thought;
  }
  // Tools that answer one after the other share one message.
  out += fmt::format(
      "{{%- elif message['role'] == 'tool' %}}"
      "{{{{- {} if loop.first or turns[loop.index0 - 1]['role'] != 'tool' else '' }}}}"
      "{{{{- message['content'] }}}}"
      "{{%- if loop.last or turns[loop.index0 + 1]['role'] != 'tool' %}}{{{{- {} }}}}{}"
      "{{%- else %}}{{{{- '\\n</tool_response>\\n<tool_response>\\n' }}}}{{%- endif %}}"
      "{{%- elif message['role'] == 'assistant' %}}{}{{{{- {} }}}}{{%- endif %}}{{%- endfor %}}",
      "(" + expression(tool.substr(0, content), "") + ")",
      "(" + expression(tool.substr(content + 3), "") + ")", thought, answer(format),
      expression(format.assistant, "content"));
  return out;
}

const std::map<std::string, std::string, std::less<>>& sources() {
  static const std::map<std::string, std::string, std::less<>> kSources = [] {
    std::map<std::string, std::string, std::less<>> all;
    for (Format format : kFormats) {
      all.emplace(format.name, source_of(format));
      if (format.style != Style::kThoughts) continue;
      format.style = Style::kNoThoughts;
      all.emplace(std::string(format.name) + kLlamaFactoryNoThinking, source_of(format));
    }
    return all;
  }();
  return kSources;
}

}  // namespace

std::string_view llama_factory_template(std::string_view name) {
  const auto found = sources().find(name);
  return found == sources().end() ? std::string_view() : std::string_view(found->second);
}

std::vector<std::string_view> llama_factory_template_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, source] : sources()) {
    if (!name.ends_with(kLlamaFactoryNoThinking)) names.push_back(name);
  }
  return names;
}

}  // namespace tessera
