#include "cli/completion/completion_table.h"

#include <algorithm>
#include <sstream>

namespace tessera {
namespace {

// "float32" and "15m" are words; "DIR", "N", "0-3" and "R:N,..." say what kind of value is expected.
bool is_word(const std::string& text) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto may_stand = [&](char c) {
    return is_lower(c) || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  };
  return std::ranges::any_of(text, is_lower) && std::ranges::all_of(text, may_stand);
}

CompletionValues values_of(const std::string& value_name) {
  CompletionValues values;
  std::istringstream parts(value_name);
  for (std::string part; std::getline(parts, part, '|');) {
    if (is_word(part)) {
      values.words.push_back(part);
    } else if (part.starts_with("FILE") || part == "PATH") {
      values.files = true;
    } else if (part.starts_with("DIR")) {
      values.folders = true;
    }
  }
  return values;
}

std::string first_sentence(const std::string& help) {
  constexpr size_t kMaxSize = 70;
  std::string text = help.substr(0, std::min(help.find(". "), help.find(": ")));
  if (text.size() > kMaxSize) text = text.substr(0, text.rfind(' ', kMaxSize)) + " ...";
  while (text.ends_with('.') && !text.ends_with("...")) text.pop_back();
  return text;
}

CompletionCommand describe(Command& command) {
  CompletionCommand out;
  out.name = command.name();
  out.summary = command.summary();
  out.takes_command = !command.rest_flag().empty();
  FlagTable table;
  command.declare_flags(&table);
  for (const Flag& flag : table.flags()) {
    if (flag.status != FlagStatus::kHonoured || flag.name == command.rest_flag()) continue;
    if (flag.positional || !flag.lone_endings.empty()) {
      out.positional = values_of(flag.value_name);
      out.takes_command_name = flag.value_name == "COMMAND";
    }
    if (flag.positional || (!flag.listed && !command.completes_unlisted_flags())) continue;
    CompletionFlag entry;
    entry.name = flag.name;
    entry.value_name = flag.value_name;
    entry.help = first_sentence(flag.help);
    entry.values = values_of(flag.value_name);
    entry.is_bool = flag.type == FlagType::kBool;
    entry.is_list = flag.type == FlagType::kStringList;
    out.flags.push_back(std::move(entry));
  }
  CompletionFlag help;
  help.name = "help";
  help.help = "Explain the command";
  help.is_bool = true;
  out.flags.push_back(std::move(help));
  return out;
}

}  // namespace

std::vector<CompletionCommand> completion_table(const std::vector<std::unique_ptr<Command>>& all) {
  std::vector<CompletionCommand> table;
  for (const auto& command : all) table.push_back(describe(*command));
  return table;
}

DescribedWords second_words(const std::vector<CompletionCommand>& table, const std::string& group) {
  DescribedWords words;
  for (const CompletionCommand& command : table) {
    if (command.name.starts_with(group + " ")) {
      words.emplace_back(command.name.substr(group.size() + 1), command.summary);
    }
  }
  return words;
}

DescribedWords first_words(const std::vector<CompletionCommand>& table) {
  DescribedWords words;
  for (const CompletionCommand& command : table) {
    const std::string word = command.name.substr(0, command.name.find(' '));
    if (std::ranges::any_of(words, [&](const auto& known) { return known.first == word; })) continue;
    const DescribedWords members = second_words(table, word);
    words.emplace_back(word, members.size() > 1 ? words_of(members) : command.summary);
  }
  return words;
}

std::vector<std::string> group_words(const std::vector<CompletionCommand>& table) {
  std::vector<std::string> words;
  for (const auto& [word, summary] : first_words(table)) {
    if (!second_words(table, word).empty()) words.push_back(word);
  }
  return words;
}

std::string words_of(const DescribedWords& words) {
  std::string out;
  for (const auto& [word, meaning] : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

}  // namespace tessera
