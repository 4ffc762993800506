// A subcommand of the program: its flags and what it does. One file per subcommand; cli/program/commands.cc
// lists them all.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/field_table.h"
#include "settings/run/data_settings.h"

namespace tessera {

// Thrown by a command whose exit code is its result, once all its output is written.
struct ResultCode {
  int code;
};

class Command {
 public:
  virtual ~Command() = default;

  virtual std::string name() const = 0;  // "train", "tokenizer train"

  // Help comes from help_texts/NAME.txt, with _ for spaces in the name. The file has a line for
  // `tessera --help`, a line with what follows the name on the usage line, paragraphs to show above the flags
  // if the first line does not suffice, examples indented by four spaces, and after a line "# flag" the texts
  // of the command's flags (base/field_table.h).
  virtual std::string summary() const;
  virtual std::string usage() const;
  virtual std::string description() const;  // a line for each paragraph
  virtual std::vector<std::string> examples() const;

  // Binds the flags to this object's members.
  virtual void declare_flags(FlagTable* table) = 0;
  // The list flag that takes a command with its own flags, after this command's flags; "" = none.
  virtual std::string rest_flag() const { return ""; }
  // True if several ranks of a job share the work, or each reports on its machine. Otherwise the command
  // refuses to run under a launcher that starts several ranks.
  virtual bool is_for_ranks() const { return false; }
  // True if a launcher may start the command once for each node, which then starts the ranks.
  virtual bool is_for_nodes() const { return false; }
  // True if flags that help does not list are worth completing in a shell.
  virtual bool completes_unlisted_flags() const { return false; }
  // True if only warnings, errors and the result are wanted. Asked once the flags are set.
  virtual bool is_quiet() const { return false; }
  // Sets flags from other sources, after those on the command line.
  virtual void complete_flags(FlagTable*) {}
  // If not, only the configuration and tokenizer of a model on the Hub are downloaded.
  virtual bool reads_weights() const { return true; }
  // The flag's values, names on the Hub among them, have been replaced by folders.
  virtual void on_hub_names(const std::string& /*flag*/, const std::vector<std::string>& /*names*/) {}
  // If not, names on the Hub are left as they are.
  virtual bool resolves_hub_names() const { return true; }
  // Where the files of data sets on the Hub are noted, for a command that reads data sets (flags named
  // dataset and eval_dataset).
  virtual DataArguments* data_arguments() { return nullptr; }
  // Called once, after checking that the required flags are set. Throws Error.
  virtual void run(FlagTable* table) = 0;

 protected:
  // Declares a flag, whose line is in the command's help text or in common.txt: FieldTable::add().
  template <typename T, typename... Words>
  Flag& declare(FlagTable* table, const std::string& flag, T* target, const Words&... words) const {
    return fields_with(flag).add(table, flag, target, words...);
  }
  Flag& declare(FlagTable* table, const std::string& flag, std::string* target,
                std::vector<std::string> words) const {
    return fields_with(flag).add(table, flag, target, std::move(words));
  }
  Flag& declare_size(FlagTable* table, const std::string& flag, std::optional<int64_t>* target,
                     const std::string& example) const {
    return fields_with(flag).add_size(table, flag, target, example);
  }

  // Help lists, of the flags declared so far, only those with these names, which blanks separate.
  static void list_only(FlagTable* table, const std::string& names);
  // The flags among the first `count` that were given and have a value.
  static std::vector<const Flag*> given_of_first(const FlagTable& table, size_t count);
  // The lines of the command's own help text.
  const FieldTable& own_fields() const;

 private:
  const FieldTable& fields_with(const std::string& flag) const;
};

// The flags that several commands have: help_texts/common.txt.
const FieldTable& common_fields();

using Commands = std::vector<std::unique_ptr<Command>>;

}  // namespace tessera
