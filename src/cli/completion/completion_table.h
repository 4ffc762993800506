// What shells offer on the command line, taken from the commands' flag tables.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"

namespace tessera {

// What may stand for a value: the words listed, names of files or of folders, or anything (none of them).
struct CompletionValues {
  std::vector<std::string> words;
  bool files = false;  // folders, too
  bool folders = false;

  bool empty() const { return words.empty() && !files && !folders; }
};

struct CompletionFlag {
  std::string name;
  std::string value_name;
  std::string help;  // the first sentence, shortened to fit a line
  CompletionValues values;
  bool is_bool = false;  // the value may be left out
  bool is_list = false;  // further values may follow
};

struct CompletionCommand {
  std::string name;  // of one or two words
  std::string summary;
  std::vector<CompletionFlag> flags;
  CompletionValues positional;      // what stands without a flag
  bool takes_command = false;       // another command follows its flags
  bool takes_command_name = false;  // as `help` does
};

std::vector<CompletionCommand> completion_table(const std::vector<std::unique_ptr<Command>>& all);

// Words and what they mean.
using DescribedWords = std::vector<std::pair<std::string, std::string>>;

// First words of commands, each once; a word that needs a second one is described by the list of those.
DescribedWords first_words(const std::vector<CompletionCommand>& table);
DescribedWords second_words(const std::vector<CompletionCommand>& table, const std::string& group);
// Those that need a second one: "bench", "data".
std::vector<std::string> group_words(const std::vector<CompletionCommand>& table);

std::string words_of(const DescribedWords& words);  // separated by spaces

// The scripts that a shell reads.
std::string bash_completion(const std::vector<CompletionCommand>& table);
std::string zsh_completion(const std::vector<CompletionCommand>& table);
std::string fish_completion(const std::vector<CompletionCommand>& table);

}  // namespace tessera
