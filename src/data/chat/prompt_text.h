// Prompts that are text around the columns of a row instead of a chat template: Axolotl's prompt styles.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Formats are Python's: {instruction}, {input} and {system} are replaced, {{ and }} are braces.
struct PromptText {
  std::string system = {};           // before the formats' text, in rows with an input
  std::string no_input_system = {};  // for rows without an input
  std::string format = {};
  std::string no_input_format = {};
  // Around the column `system`, or default_system where a row has none; "" = there is no such column.
  std::string system_format = {};
  std::string default_system = {};
  bool operator==(const PromptText&) const = default;

  // `row_system` is null for a row without that column.
  std::string render(std::string_view instruction, std::string_view input,
                     const std::string* row_system) const;
  // For cache keys.
  std::string text() const;
};

// Describes the problem with a format whose fields may be `names`; "" if there is none.
std::string format_problem(std::string_view format, const std::vector<std::string_view>& names);

}  // namespace tessera
