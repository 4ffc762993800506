#include "cli/command.h"
#include "cli/hub_names.h"
#include "cli/terminal/terminal.h"
#include "formats/inspect/inspect.h"

namespace tessera {
namespace {

class InspectCommand : public Command {
 public:
  std::string name() const override { return "inspect"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "path", &path_);
    declare(table, "json", &json_);
  }

  void run(FlagTable*) override {
    const std::string path = local_model(path_, ModelFiles::kAll);
    write_output(json_ ? inspect_json(path) : inspect(path));
  }

 private:
  std::string path_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_inspect_command() { return std::make_unique<InspectCommand>(); }

}  // namespace tessera
