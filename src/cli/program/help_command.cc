#include <filesystem>

#include "base/error.h"
#include "base/name_hint.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/help_text.h"
#include "cli/program/commands.h"
#include "cli/program/compat_help.h"
#include "cli/program/manual_page.h"
#include "cli/terminal/terminal.h"
#include "io/file.h"

namespace tessera {
namespace {

class HelpCommand : public Command {
 public:
  std::string name() const override { return "help"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "command", &command_words_);
    declare(table, "markdown", &markdown_);
    declare(table, "man", &man_folder_);
  }

  void run(FlagTable*) override {
    const Commands all = commands();
    const bool is_compat = !command_words_.empty() && command_words_[0] == "compat";
    if (markdown_) return write_output(is_compat ? compat_reference() : flag_reference(all));
    if (is_compat) {
      command_words_.erase(command_words_.begin());
      return write_output(compat_help(command_words_, terminal_width()));
    }
    if (!man_folder_.empty()) {
      write_manual_pages(all);
      return;
    }
    if (command_words_.empty()) {
      write_output(program_help(all, terminal_width()));
      return;
    }
    const std::string wanted = fmt::format("{}", fmt::join(command_words_, " "));
    std::vector<std::string> names;
    for (const auto& command : all) {
      if (command->name() == wanted) {
        write_output(command_help(command.get(), terminal_width()));
        return;
      }
      names.push_back(command->name());
    }
    if (commands_of_group(all, wanted).size() > 1) {
      write_output(group_help(all, wanted, terminal_width()));
      return;
    }
    const std::string nearest = nearest_name(wanted, names);
    fail(ExitCode::kUsage, "no command '{}'; {}", printable(wanted),
         nearest.empty() ? "tessera --help lists them" : fmt::format("did you mean '{}'?", nearest));
  }

 private:
  void write_manual_pages(const Commands& all) const {
    const std::filesystem::path folder = man_folder_;
    create_folder(folder);
    write_text_file(folder / "tessera.1", manual_page_of_program(all));
    for (const auto& command : all) {
      write_text_file(folder / (manual_page_name(*command) + ".1"), manual_page(command.get()));
    }
  }

  std::vector<std::string> command_words_;
  std::string man_folder_;
  bool markdown_ = false;
};

}  // namespace

std::unique_ptr<Command> make_help_command() { return std::make_unique<HelpCommand>(); }

}  // namespace tessera
