#include "settings/foreign/axolotl_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/json_value.h"
#include "base/text.h"
#include "data/chat/example.h"
#include "data/chat/prompt_text.h"

namespace tessera {
namespace {

using nlohmann::json;

// The texts are Axolotl's (prompters.py, prompt_strategies/alpaca_*.py of 0.19, Apache 2.0): rows have to be
// the same to the letter.
struct PromptSystem {
  std::string_view with_input;
  std::string_view without;
};
constexpr PromptSystem kAlpaca = {
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write "
    "a response that appropriately completes the request.",
    "Below is an instruction that describes a task. Write a response that appropriately completes the "
    "request."};
constexpr PromptSystem kConcise = {
    "Below is an instruction from a USER that describes a task, paired with an input that provides further "
    "context. The ASSISTANT writes a response that concisely and appropriately completes the request.\n\n",
    "Below is an instruction from a USER that describes a task. The ASSISTANT writes a response that "
    "appropriately and concisely completes the request.\n\n"};
constexpr PromptSystem kNoSystem = {"", ""};

struct PromptStyle {
  std::string_view name;
  std::string_view system;  // around the system text
  std::string_view turn;
  std::string_view turn_without_input;
};
constexpr PromptStyle kPromptStyles[] = {
    {"instruct", "{system}\n\n", "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n",
     "### Instruction:\n{instruction}\n\n### Response:\n"},
    {"chat", "SYSTEM: {system}\n",
     "USER: {instruction}\n{input}\nASSISTANT:", "USER: {instruction}\nASSISTANT:"},
    {"chatml", "<|im_start|>system\n{system}<|im_end|>\n",
     "<|im_start|>user\n{instruction}\n{input}<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>user\n{instruction}<|im_end|>\n<|im_start|>assistant\n"},
    {"phi", "<|system|>\n{system}<|end|>\n", "<|user|>\n{instruction}<|end|>{input}<|assistant|>",
     "<|user|>\n{instruction}<|end|>\n<|assistant|>\n"},
    {"orca", "### System:\n{system}\n",
     "### Human:\n{instruction}\n### Additional Context:\n{input}\n### Assistant:\n",
     "### Human:\n{instruction}\n### Assistant:\n"},
    {"tldr", "", "", "USER: Summarize the following article as a TL;DR.\n{instruction}\nASSISTANT:"},
};

struct PromptColumns {
  std::string_view instruction = "instruction";
  std::string_view input = "input";  // "" = never read
  std::string_view output = "output";
  std::string_view system = "";  // a column with the row's system text
};

struct PromptType {
  std::string_view name;
  std::string_view style;
  bool takes_style;
  PromptSystem system;
  PromptColumns columns;
};
constexpr PromptType kPromptTypes[] = {
    {"alpaca", "instruct", true, kAlpaca, {}},
    {"alpaca_instruct", "instruct", false, kAlpaca, {}},
    {"alpaca_instruct.load_no_prompt", "instruct", false, kNoSystem, {}},
    {"alpaca_chat", "chat", true, kAlpaca, {}},
    {"alpaca_chat.load_concise", "chat", false, kConcise, {}},
    {"alpaca_chat.load_no_prompt", "chat", false, kNoSystem, {}},
    {"alpaca_chat.load_qa", "chat", false, kConcise, {"question", "", "answer"}},
    {"alpaca_chat.load_camel_ai", "chat", false, kConcise, {"message_1", "", "message_2"}},
    {"alpaca_w_system", "chat", false, kNoSystem, {"instruction", "input", "output", "system"}},
    {"alpaca_w_system.load_chat", "chat", false, kNoSystem, {"instruction", "input", "output", "system"}},
    {"alpaca_w_system.load_instruct",
     "instruct",
     false,
     kNoSystem,
     {"instruction", "input", "output", "system"}},
    {"alpaca_w_system.load_open_orca",
     "orca",
     false,
     kNoSystem,
     {"question", "", "response", "system_prompt"}},
    {"alpaca_w_system.load_open_orca_chatml",
     "chatml",
     false,
     kNoSystem,
     {"question", "", "response", "system_prompt"}},
    {"gpteacher", "instruct", true, kAlpaca, {"instruction", "input", "response"}},
    {"oasst", "instruct", true, kAlpaca, {"INSTRUCTION", "", "RESPONSE"}},
    {"summarizetldr", "tldr", false, kNoSystem, {"article", "", "summary"}},
};

std::string system_text(const PromptStyle& style, std::string_view text) {
  std::string filled(style.system);
  constexpr std::string_view kField = "{system}";
  const size_t at = filled.find(kField);
  return text.empty() || at == std::string::npos ? "" : filled.replace(at, kField.size(), text);
}

std::string prompt_text_or(const json& object, const char* name, std::string otherwise) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return otherwise;
  if (!found->is_string()) throw fmt::format("{}: expected a text, found {}", name, found_text(*found));
  return found->get<std::string>();
}

}  // namespace

std::optional<json> axolotl_prompt_format(const std::string& type, const std::string& style_name) {
  const auto found = std::find_if(std::begin(kPromptTypes), std::end(kPromptTypes),
                                  [&](const PromptType& known) { return known.name == type; });
  if (found == std::end(kPromptTypes) || (!found->takes_style && !style_name.empty())) return std::nullopt;
  const std::string_view wanted = style_name.empty() ? found->style : std::string_view(style_name);
  const bool is_public = style_name != "orca" && style_name != "tldr";
  const auto style = std::find_if(std::begin(kPromptStyles), std::end(kPromptStyles),
                                  [&](const PromptStyle& known) { return known.name == wanted; });
  if (style == std::end(kPromptStyles) || !is_public) return std::nullopt;
  const PromptColumns& columns = found->columns;
  json format = {{"shape", "prompt_text"}};
  const auto set_column = [&](const char* field, std::string_view column) {
    if (column != field) format["columns"][field] = column.empty() ? kNoColumn : column;
  };
  set_column("instruction", columns.instruction);
  set_column("input", columns.input);
  set_column("output", columns.output);
  set_column("system", columns.system);
  format["prompt"] = {{"system", system_text(*style, found->system.with_input)},
                      {"no_input_system", system_text(*style, found->system.without)},
                      {"format", style->turn},
                      {"no_input_format", style->turn_without_input},
                      {"system_format", columns.system.empty() ? "" : style->system}};
  return format;
}

std::vector<std::string> axolotl_prompt_types() {
  std::vector<std::string> names;
  for (const PromptType& type : kPromptTypes) names.emplace_back(type.name);
  return names;
}

json user_defined_prompt_format(const json& type) {
  static constexpr std::string_view kFields[] = {
      "system_prompt", "system_format", "field_system", "field_instruction",
      "field_input",   "field_output",  "format",       "no_input_format"};
  for (const auto& [name, value] : type.items()) {
    if (std::find(std::begin(kFields), std::end(kFields), name) == std::end(kFields))
      throw fmt::format("'{}': expected one of {}", printable(name), fmt::join(kFields, ", "));
  }
  json format = {{"shape", "prompt_text"}};
  for (const char* field : {"instruction", "input", "output", "system"}) {
    const std::string name = fmt::format("field_{}", field);
    const std::string column = prompt_text_or(type, name.c_str(), field);
    // A column by another name is one that rows have; those of the usual names may lack.
    if (column != field) format["columns"][field] = column;
  }
  json& prompt = format["prompt"];
  prompt["default_system"] = prompt_text_or(type, "system_prompt", "");
  const auto set_format = [&](const char* name, const char* otherwise,
                              const std::vector<std::string_view>& fields) {
    prompt[name] = prompt_text_or(type, name, otherwise);
    if (const std::string problem = format_problem(prompt[name].get<std::string>(), fields); !problem.empty())
      throw fmt::format("{}: found {}", name, problem);
  };
  set_format("system_format", "{system}", {"system"});
  set_format("format", "{instruction} {input} ", {"instruction", "input"});
  set_format("no_input_format", "{instruction} ", {"instruction"});
  return format;
}

}  // namespace tessera
