#include "cli/command.h"

#include <algorithm>

#include "base/embedded_text.h"
#include "base/error.h"
#include "base/text.h"

namespace tessera {

std::span<const EmbeddedText> help_texts();  // cli/help_texts/*.txt

namespace {

constexpr std::string_view kExampleIndent = "    ";

std::vector<std::string> help_lines(const Command& command) {
  std::string file = command.name();
  std::ranges::replace(file, ' ', '_');
  const std::string_view text = text_named(help_texts(), file);
  TESSERA_CHECK(!text.empty(), "no help text for {}", file);
  return split(text.substr(0, text.find_last_not_of('\n') + 1), '\n');
}

}  // namespace

std::string Command::summary() const { return help_lines(*this).at(0); }

std::string Command::usage() const { return help_lines(*this).at(1); }

std::string Command::description() const {
  const std::vector<std::string> lines = help_lines(*this);
  std::string text;
  bool begins = true;  // a paragraph
  for (size_t i = 2; i < lines.size(); ++i) {
    if (lines[i].starts_with(kExampleIndent)) break;
    if (lines[i].empty()) {
      begins = true;
      continue;
    }
    if (!text.empty()) text += begins ? '\n' : ' ';
    text += lines[i];
    begins = false;
  }
  return text;
}

std::vector<std::string> Command::examples() const {
  std::vector<std::string> examples;
  for (const std::string& line : help_lines(*this)) {
    if (line.starts_with(kExampleIndent)) examples.push_back(line.substr(kExampleIndent.size()));
  }
  return examples;
}

}  // namespace tessera
