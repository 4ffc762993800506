#include <fmt/ranges.h>

#include "base/embedded_text.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/completion/offers.h"
#include "cli/program/commands.h"
#include "cli/terminal/terminal.h"

namespace tessera {

std::span<const EmbeddedText> completion_scripts();  // cli/completion/*.sh

namespace {

class CompletionCommand : public Command {
 public:
  std::string name() const override { return "completion"; }

  // After the word `offer`, which the scripts give: the words of a command line.
  std::string rest_flag() const override { return "shell"; }
  void declare_flags(FlagTable* table) override { declare(table, "shell", &words_); }

  void run(FlagTable*) override {
    if (words_[0] == "offer") {
      for (const Offer& offer : completion_offers(commands(), {words_.begin() + 1, words_.end()})) {
        print("{}{}{}\n", offer.word, offer.meaning.empty() ? "" : "\t", offer.meaning);
      }
      return;
    }
    for (const EmbeddedText& script : completion_scripts()) {
      if (words_ == std::vector<std::string>{std::string(script.name)})
        return write_output(std::string(script.text));
    }
    fail(ExitCode::kUsage, "completion: expected bash, zsh or fish, found '{}'",
         printable(fmt::format("{}", fmt::join(words_, " "))));
  }

 private:
  std::vector<std::string> words_;
};

}  // namespace

std::unique_ptr<Command> make_completion_command() { return std::make_unique<CompletionCommand>(); }

}  // namespace tessera
