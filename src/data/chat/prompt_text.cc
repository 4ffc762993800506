#include "data/chat/prompt_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

using Fields = std::vector<std::pair<std::string_view, std::string_view>>;

// Calls text(part) and field(name) for the parts of a format; returns what is wrong with it.
template <typename TextPart, typename FieldPart>
std::string walk_format(std::string_view format, const TextPart& text, const FieldPart& field) {
  while (!format.empty()) {
    const size_t brace = format.find_first_of("{}");
    text(format.substr(0, brace));
    if (brace == std::string_view::npos) return {};
    format.remove_prefix(brace);
    if (format.size() > 1 && format[1] == format[0]) {
      text(format.substr(0, 1));
      format.remove_prefix(2);
      continue;
    }
    const size_t end = format.find('}');
    if (format[0] == '}' || end == std::string_view::npos) return "a single brace, which is written twice";
    field(format.substr(1, end - 1));
    format.remove_prefix(end + 1);
  }
  return {};
}

std::string fill(std::string_view format, const Fields& fields) {
  std::string filled;
  walk_format(
      format, [&](std::string_view part) { filled += part; },
      [&](std::string_view name) {
        for (const auto& [known, value] : fields) {
          if (known == name) filled += value;
        }
      });
  return filled;
}

}  // namespace

std::string PromptText::render(std::string_view instruction, std::string_view input,
                               const std::string* row_system) const {
  std::string prompt;
  if (!system_format.empty()) {
    const std::string& text = row_system == nullptr ? default_system : *row_system;
    if (!text.empty()) prompt = fill(system_format, {{"system", text}});
  }
  prompt += input.empty() ? no_input_system : system;
  return prompt +
         fill(input.empty() ? no_input_format : format, {{"instruction", instruction}, {"input", input}});
}

std::string PromptText::text() const {
  std::string text = "prompt";
  for (const std::string* part :
       {&system, &no_input_system, &format, &no_input_format, &system_format, &default_system})
    text += fmt::format(" {}:{}", part->size(), *part);
  return text;
}

std::string format_problem(std::string_view format, const std::vector<std::string_view>& names) {
  std::string unknown;
  std::string problem = walk_format(
      format, [](std::string_view) {},
      [&](std::string_view name) {
        if (unknown.empty() && std::find(names.begin(), names.end(), name) == names.end())
          unknown = fmt::format("{{{}}}, expected {{{}}}", name, fmt::join(names, "} or {"));
      });
  return problem.empty() ? unknown : problem;
}

}  // namespace tessera
