#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "cli/completion/completion_table.h"

namespace tessera {
namespace {

// The tables come first. A list of values has words and @files, @folders, @any (nothing to offer), @bool (the
// value may be left out) or @list (more may follow).
constexpr const char* kBashFunction = R"(
_tessera() {
  local cur=${COMP_WORDS[COMP_CWORD]} command= flag= distance=0 values= flags= i word
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $word == --?* ]]; then
      flag=${word#--} distance=$((COMP_CWORD - i))
    elif [[ -z $command || $command == launch ]]; then
      [[ " $_tessera_words " == *" $word "* ]] && command=$word flag=
    elif [[ " $_tessera_groups " == *" $command "* ]]; then
      command+=" $word"
    fi
  done
  # Bash makes a word of the = in --flag=value.
  if [[ $cur == = ]]; then
    cur=
  elif [[ ${COMP_WORDS[COMP_CWORD - 1]} == = ]]; then
    ((distance--))
  fi
  if [[ $cur != -* ]]; then
    [[ -z $flag ]] || _tessera_values "$command --${flag//-/_}"
    [[ -n $flag && ($distance == 1 || $values == *@list*) ]] || _tessera_values "$command"
  fi
  if [[ $cur == -* || (-z $cur && ($values == *@bool* || -z $values)) ]]; then
    _tessera_flags "$command"
    [[ $cur != --*-* ]] || flags=${flags//_/-}
  fi
  case " $values " in
    *' @files '*) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    *' @folders '*) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
  esac
  for word in $values $flags; do
    [[ $word == @* || $word != "$cur"* ]] || COMPREPLY+=("$word")
  done
}
complete -F _tessera tessera
)";

std::string list_of(const CompletionValues& values) {
  std::vector<std::string> parts = values.words;
  if (values.files || values.folders) parts.push_back(values.files ? "@files" : "@folders");
  return fmt::format("{}", fmt::join(parts, " "));
}

std::string list_of(const CompletionFlag& flag) {
  if (flag.is_bool) return "true false @bool";
  const std::string list = flag.values.empty() ? "@any" : list_of(flag.values);
  return flag.is_list ? list + " @list" : list;
}

// A shell function that sets `variable` by its first argument.
std::string choice(const std::string& function, const std::string& variable,
                   const std::map<std::string, std::vector<std::string>>& keys_by_value,
                   const std::string& otherwise) {
  std::string out = fmt::format("\n{}() {{\n  case $1 in\n", function);
  for (const auto& [value, keys] : keys_by_value) {
    out += fmt::format("    {}) {}='{}' ;;\n", fmt::join(keys, " | "), variable, value);
  }
  return out + fmt::format("    *) {}={} ;;\n  esac\n}}\n", variable, otherwise);
}

std::string quoted(const std::string& key) { return "'" + key + "'"; }

}  // namespace

std::string bash_completion(const std::vector<CompletionCommand>& table) {
  const std::string words = words_of(first_words(table));
  std::map<std::string, std::vector<std::string>> flags = {{"--help --version", {"''"}}};
  std::map<std::string, std::vector<std::string>> values = {{words, {"''"}}};
  for (const CompletionCommand& command : table) {
    std::string names;
    for (const CompletionFlag& flag : command.flags) {
      names += (names.empty() ? "--" : " --") + flag.name;
      if (const std::string list = list_of(flag); list != "@any") {
        values[list].push_back(quoted(command.name + " --" + flag.name));
      }
    }
    flags[names].push_back(quoted(command.name));
    const bool takes_words = command.takes_command || command.takes_command_name;
    values[takes_words ? words : list_of(command.positional)].push_back(quoted(command.name));
  }
  for (const std::string& group : group_words(table)) {
    values[words_of(second_words(table, group))].push_back(quoted(group));
    flags["--help"].push_back(quoted(group));
  }
  return fmt::format(
             "# Bash completion for tessera, written by `tessera completion bash`.\n"
             "_tessera_words='{}'\n_tessera_groups='{}'\n",
             words, fmt::join(group_words(table), " ")) +
         choice("_tessera_flags", "flags", flags, "") + choice("_tessera_values", "values", values, "@any") +
         kBashFunction;
}

}  // namespace tessera
