#include "cli/command.h"

#include <algorithm>
#include <map>

#include "base/embedded_text.h"
#include "base/error.h"
#include "base/text.h"

namespace tessera {

std::span<const EmbeddedText> help_texts();  // cli/help_texts/*.txt

namespace {

constexpr std::string_view kExampleIndent = "    ";

constexpr std::string_view kFlags = "# flag";

std::string file_of(const Command& command) {
  std::string file = command.name();
  std::ranges::replace(file, ' ', '_');
  return file;
}

std::vector<std::string> help_lines(const Command& command) {
  const std::string_view text = text_named(help_texts(), file_of(command));
  TESSERA_CHECK(!text.empty(), "no help text for {}", command.name());
  return split(text.substr(0, text.find_last_not_of('\n', text.find(kFlags) - 1) + 1), '\n');
}

// One thread declares the flags of all commands.
const FieldTable& fields_in(const std::string& file) {
  static std::map<std::string, FieldTable> tables;
  const std::string_view text = text_named(help_texts(), file);
  return tables.try_emplace(file, file, text.substr(std::min(text.find(kFlags), text.size()))).first->second;
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

void Command::list_only(FlagTable* table, const std::string& names) {
  const std::vector<std::string> words = split(names, ' ');
  table->list_only({words.begin(), words.end()});
}

std::vector<const Flag*> Command::given_of_first(const FlagTable& table, size_t count) {
  std::vector<const Flag*> given;
  for (size_t i = 0; i < count; ++i) {
    const Flag& flag = table.flags()[i];
    if (table.is_set(flag.name) && flag.get) given.push_back(&flag);
  }
  return given;
}

const FieldTable& Command::own_fields() const { return fields_in(file_of(*this)); }

const FieldTable& Command::fields_with(const std::string& flag) const {
  return own_fields().has(flag) ? own_fields() : common_fields();
}

const FieldTable& common_fields() { return fields_in("common"); }

}  // namespace tessera
