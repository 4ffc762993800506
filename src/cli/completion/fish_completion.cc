#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/completion/completion_table.h"

namespace tessera {
namespace {

std::string fish_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

// What `complete` needs to offer these values.
std::string options_for(const CompletionValues& values) {
  std::vector<std::string> offers = values.words;
  if (!values.files && values.folders) offers.push_back("(__fish_complete_directories)");
  std::string out = values.files ? " -F" : " -f";
  if (!offers.empty()) out += fmt::format(" -a '{}'", fmt::join(offers, " "));
  return out;
}

std::string flag_line(const std::string& condition, const CompletionFlag& flag) {
  std::string out = fmt::format("{} -l {} -d '{}'", condition, flag.name, fish_text(flag.help));
  if (flag.is_bool) return out + "\n";
  return out + " -r" + options_for(flag.values) + "\n";
}

std::string condition_for(const std::string& command) {
  return fmt::format("complete -c tessera -n '__tessera_is \"{}\"'", command);
}

std::string described_words(const std::string& command, const DescribedWords& words) {
  std::string out;
  for (const auto& [word, summary] : words) {
    out += fmt::format("{} -a {} -d '{}'\n", condition_for(command), word, fish_text(summary));
  }
  return out;
}

}  // namespace

std::string fish_completion(const std::vector<CompletionCommand>& table) {
  std::string out = fmt::format(
      R"(# Fish completion for tessera, written by `tessera completion fish`.
function __tessera_is -a wanted
    set -l command
    for word in (commandline -opc)[2..-1]
        if string match -q -- '-*' $word
            continue
        else if contains -- "$command" '' launch
            contains -- $word {}; and set command $word
        else if contains -- $command {}
            set command "$command $word"
        end
    end
    test "$command" = "$wanted"
end
complete -c tessera -f
)",
      words_of(first_words(table)), fmt::join(group_words(table), " "));
  out += condition_for("") + " -l help -d 'List the commands'\n";
  out += condition_for("") + " -l version -d 'Show the version'\n";
  out += described_words("", first_words(table));
  for (const std::string& group : group_words(table)) {
    out += described_words(group, second_words(table, group));
  }
  for (const CompletionCommand& command : table) {
    const std::string condition = condition_for(command.name);
    for (const CompletionFlag& flag : command.flags) out += flag_line(condition, flag);
    if (command.takes_command || command.takes_command_name) {
      out += described_words(command.name, first_words(table));
    } else if (!command.positional.empty()) {
      out += condition + options_for(command.positional) + "\n";
    }
  }
  return out;
}

}  // namespace tessera
