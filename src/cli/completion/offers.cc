#include "cli/completion/offers.h"

#include <algorithm>
#include <map>

#include "base/flags.h"
#include "base/text.h"
#include "cli/program/commands.h"

namespace tessera {
namespace {

using Words = std::vector<std::string>;

bool is_word(const std::string& text) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto may_stand = [&](char c) {
    return is_lower(c) || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  };
  return std::ranges::any_of(text, is_lower) && std::ranges::all_of(text, may_stand);
}

// The parts of "FILE|chatml|llama3" that can be offered.
void add_values(const std::string& value_name, std::vector<Offer>* out) {
  bool has_files = false, has_folders = false;
  for (const std::string& part : split(value_name, '|')) {
    if (is_word(part)) out->push_back({part, ""});
    has_files = has_files || part.starts_with("FILE") || part == "PATH";
    has_folders = has_folders || part.starts_with("DIR");
  }
  if (has_files || has_folders) out->push_back({has_files ? kFiles : kFolders, ""});
}

std::string first_sentence(const std::string& help) {
  constexpr size_t kMaxSize = 70;
  std::string text = help.substr(0, std::min(help.find(". "), help.find(": ")));
  if (text.size() > kMaxSize) text = text.substr(0, text.rfind(' ', kMaxSize)) + " ...";
  while (text.ends_with('.') && !text.ends_with("...")) text.pop_back();
  return text;
}

// The next words of the commands that begin with these words.
void add_commands(const Commands& all, const Words& before, std::vector<Offer>* out) {
  std::map<std::string, int> num_commands;
  std::vector<Offer> found;
  for (const auto& command : all) {
    const Words name = split(command->name(), ' ');
    if (name.size() <= before.size() || !std::equal(before.begin(), before.end(), name.begin())) continue;
    const std::string& next = name[before.size()];
    if (++num_commands[next] == 1) found.push_back({next, command->summary()});
  }
  for (Offer& offer : found) {
    if (num_commands[offer.word] > 1) offer.meaning = "several commands";
    out->push_back(std::move(offer));
  }
}

void add_flags(const Command& command, const FlagTable& table, std::vector<Offer>* out) {
  for (const Flag& flag : table.flags()) {
    if (flag.status != FlagStatus::kHonoured || flag.positional || flag.name == command.rest_flag()) continue;
    if (!flag.listed && !command.completes_unlisted_flags()) continue;
    out->push_back({"--" + flag.name, first_sentence(flag.help)});
  }
  out->push_back({"--help", "Explain the command"});
}

// "--flag", "=", "value" as one word.
void join_at_equals(Words* words) {
  for (size_t i = 1; i < words->size(); ++i) {
    if ((*words)[i] != "=" || !(*words)[i - 1].starts_with("--")) continue;
    (*words)[i - 1] += "=";
    words->erase(words->begin() + static_cast<std::ptrdiff_t>(i));
    if (i == words->size()) return;
    (*words)[i - 1] += (*words)[i];
    words->erase(words->begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// Returns a command's offers once its name is typed. `before`: the words after the name, without the last.
std::vector<Offer> offers_within(const Commands& all, Command& command, const Words& before,
                                 const std::string& last) {
  FlagTable table;
  command.declare_flags(&table);
  std::vector<Offer> out;
  if (const size_t equals = last.find('='); last.starts_with("--") && equals != std::string::npos) {
    if (const Flag* flag = table.find(last.substr(2, equals - 2))) {
      if (flag->type == FlagType::kBool) return {{"true", ""}, {"false", ""}};
      add_values(flag->value_name, &out);
    }
    return out;
  }
  if (last.starts_with("-")) {
    add_flags(command, table, &out);
    return out;
  }
  // The flag of which this may be a value.
  const auto is_flag = [](const std::string& word) { return word.starts_with("--"); };
  const auto given = std::find_if(before.rbegin(), before.rend(), is_flag);
  const Flag* const flag = given == before.rend() ? nullptr : table.find(given->substr(2));
  if (flag != nullptr) {
    const bool is_next = given == before.rbegin();
    const bool is_bool = flag->type == FlagType::kBool;
    if (is_next && is_bool) out = {{"true", ""}, {"false", ""}};
    if ((is_next && !is_bool) || flag->type == FlagType::kStringList) add_values(flag->value_name, &out);
    if (is_next && !is_bool) return out;
  }
  for (const Flag& each : table.flags()) {
    if (each.value_name.starts_with("COMMAND")) {
      add_commands(all, each.name == command.rest_flag() ? Words() : before, &out);
    } else if (each.positional || !each.lone_endings.empty()) {
      add_values(each.value_name, &out);
    }
  }
  if (last.empty() && out.empty()) add_flags(command, table, &out);
  return out;
}

}  // namespace

std::vector<Offer> completion_offers(const Commands& all, Words words) {
  join_at_equals(&words);
  if (words.empty()) words.emplace_back();
  const std::string last = words.back();
  words.pop_back();
  size_t num_words = 0;
  Command* command = find_command(all, words, &num_words);
  // Behind the flags of one that takes another command.
  for (size_t i = num_words; command != nullptr && !command->rest_flag().empty() && i < words.size(); ++i) {
    const Words rest(words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
    size_t num_inner = 0;
    Command* const inner = find_command(all, rest, &num_inner);
    std::vector<Offer> longer;  // names that begin so
    add_commands(all, rest, &longer);
    if (inner == nullptr && longer.empty()) continue;
    command = inner;
    num_words = num_inner;
    words = rest;
    break;
  }
  std::vector<Offer> out;
  if (command == nullptr || num_words == words.size()) add_commands(all, words, &out);
  if (command == nullptr && words.empty() && last.starts_with("-")) {
    out = {{"--help", "List the commands"}, {"--version", "Show the version"}};
  }
  if (command != nullptr) {
    const Words before(words.begin() + static_cast<std::ptrdiff_t>(num_words), words.end());
    for (Offer& offer : offers_within(all, *command, before, last)) out.push_back(std::move(offer));
  }
  const std::string begin =
      last.starts_with("--") && last.find('=') != std::string::npos ? last.substr(last.find('=') + 1) : last;
  const bool has_dashes = begin.find('-', 2) != std::string::npos;
  std::vector<Offer> matching;
  for (Offer& offer : out) {
    if (has_dashes && offer.word.starts_with("--"))
      std::replace(offer.word.begin() + 2, offer.word.end(), '_', '-');
    const bool matches = offer.word.starts_with('@') || offer.word.starts_with(begin);
    if (matches && std::ranges::find(matching, offer) == matching.end()) matching.push_back(offer);
  }
  return matching;
}

}  // namespace tessera
