#include "cli/command.h"
#include "cli/completion/completion_table.h"
#include "cli/terminal/terminal.h"

namespace tessera {
namespace {

class CompletionCommandLine : public Command {
 public:
  std::string name() const override { return "completion"; }
  std::string summary() const override { return "Write the completion script of a shell"; }
  std::string usage() const override { return "bash|zsh|fish"; }
  std::string description() const override {
    return "Completes commands, flags, the values of flags that have a few, and the names of files and "
           "folders. `cmake --install` and the Debian package install the scripts of all three shells.";
  }
  std::vector<std::string> examples() const override {
    return {"source <(tessera completion bash)",
            "tessera completion zsh >~/.zfunc/_tessera     # in a folder of $fpath",
            "tessera completion fish >~/.config/fish/completions/tessera.fish"};
  }

  void declare_flags(FlagTable* table) override {
    Flag& shell = table->add_choice("shell", &shell_, {"bash", "zsh", "fish"}, "The shell.");
    shell.positional = true;
    shell.required = true;
  }

  void run(FlagTable*) override {
    const std::vector<CompletionCommand> table = completion_table(commands());
    write_output(shell_ == "bash"  ? bash_completion(table)
                 : shell_ == "zsh" ? zsh_completion(table)
                                   : fish_completion(table));
  }

 private:
  std::string shell_;
};

}  // namespace

std::unique_ptr<Command> make_completion_command() { return std::make_unique<CompletionCommandLine>(); }

}  // namespace tessera
