#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/completion/completion_table.h"

namespace tessera {
namespace {

// `words` and CURRENT are zsh's: the words of the command line from the command on, and which is completed.
constexpr const char* kZshFunctions = R"(
_tessera_dispatch() {
  local name=$words[1]
  if (( CURRENT == 1 )); then
    _tessera_words
  elif (( $+functions[_tessera_words_$name] )); then
    if (( CURRENT == 2 )); then
      _tessera_words_$name
    else
      name+=_$words[2]
      shift words
      (( CURRENT-- ))
      (( $+functions[_tessera_run_$name] )) && _tessera_run_$name
    fi
  elif (( $+functions[_tessera_run_$name] )); then
    _tessera_run_$name
  fi
}

_tessera() {
  if (( CURRENT == 2 )) && [[ $words[2] == -* ]]; then
    _arguments '--help[list the commands]' '--version[show the version]'
    return
  fi
  shift words
  (( CURRENT-- ))
  _tessera_dispatch
}

if [[ $funcstack[1] == _tessera ]]; then
  _tessera "$@"
else
  compdef _tessera tessera
fi
)";

// Inside single quotes, and inside the brackets and between the colons of an argument's description.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out;
}

std::string action(const CompletionValues& values) {
  const std::string files = values.files ? "_files" : values.folders ? "_files -/" : "";
  if (values.words.empty()) return files.empty() ? " " : files;
  if (files.empty()) return fmt::format("({})", fmt::join(values.words, " "));
  return fmt::format("{{compadd {}; {}}}", fmt::join(values.words, " "), files);
}

std::string argument(const CompletionFlag& flag) {
  const std::string help = zsh_text(flag.help);
  if (flag.name == "help") return fmt::format("'--help[{}]'", help);
  if (flag.is_bool) return fmt::format("'--{}=[{}]::true or false:(true false)'", flag.name, help);
  const std::string value = fmt::format("{}:{}", zsh_text(flag.value_name), action(flag.values));
  return fmt::format("'{}--{}=[{}]:{}'", flag.is_list ? "*" : "", flag.name, help, value);
}

// What stands without a flag, further files of a list among it: the form of zsh's own for lists would end at
// no flag.
CompletionValues plain_values(const CompletionCommand& command) {
  CompletionValues values = command.positional;
  for (const CompletionFlag& flag : command.flags) values.files |= flag.is_list && flag.values.files;
  return values;
}

std::string function_name(std::string name) {
  std::ranges::replace(name, ' ', '_');
  return name;
}

std::string described_for_zsh(const std::string& function, const DescribedWords& words) {
  std::string out = fmt::format("\n{}() {{\n  local -a commands=(\n", function);
  for (const auto& [word, summary] : words) out += fmt::format("    '{}:{}'\n", word, zsh_text(summary));
  return out + "  )\n  _describe -t commands command commands\n}\n";
}

}  // namespace

std::string zsh_completion(const std::vector<CompletionCommand>& table) {
  std::string out =
      "#compdef tessera\n"
      "# Zsh completion for tessera, written by `tessera completion zsh`.\n";
  out += described_for_zsh("_tessera_words", first_words(table));
  for (const std::string& group : group_words(table)) {
    out += described_for_zsh("_tessera_words_" + group, second_words(table, group));
  }
  for (const CompletionCommand& command : table) {
    out += fmt::format("\n_tessera_run_{}() {{\n  _arguments", function_name(command.name));
    for (const CompletionFlag& flag : command.flags) out += " \\\n    " + argument(flag);
    if (command.takes_command) {
      out += " \\\n    '*::command:_tessera_dispatch'";
    } else if (command.takes_command_name) {
      out += " \\\n    '1:command:_tessera_words'";
    } else if (const CompletionValues plain = plain_values(command); !plain.empty()) {
      out += fmt::format(" \\\n    '*:argument:{}'", action(plain));
    }
    out += "\n}\n";
  }
  return out + kZshFunctions;
}

}  // namespace tessera
