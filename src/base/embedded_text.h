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

// Functions that tessera_embed() of cmake/TesseraModule.cmake defines, each in the module of its files.
std::span<const EmbeddedText> compat_texts();        // settings/compat/*.tsv
std::span<const EmbeddedText> config_texts();        // formats/huggingface/*.tsv
std::span<const EmbeddedText> tokenizer_texts();     // tokenizer/*.tsv
std::span<const EmbeddedText> prompt_texts();        // settings/foreign/*.json
std::span<const EmbeddedText> field_texts();         // settings/fields/*.tsv
std::span<const EmbeddedText> template_texts();      // data/chat/templates
std::span<const EmbeddedText> metric_texts();        // monitor/metrics/*.tsv
std::span<const EmbeddedText> help_texts();          // cli/help_texts
std::span<const EmbeddedText> completion_scripts();  // cli/completion/*.sh

}  // namespace tessera
