// Texts that are files of the source tree and parts of the program: tables, templates.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace tessera {

struct EmbeddedText {
  std::string_view name;  // the path of the file in its folder, without what follows the last dot
  std::string_view text;
};

// The text with this name; "" if there is none.
constexpr std::string_view text_named(std::span<const EmbeddedText> texts, std::string_view name) {
  for (const EmbeddedText& entry : texts) {
    if (entry.name == name) return entry.text;
  }
  return {};
}

// The cells of the lines of a table, comments left out. Error(kInternal) names the file and the line.
std::vector<std::vector<std::string_view>> read_cells(std::string_view file, std::string_view text,
                                                      size_t num_columns);

}  // namespace tessera
