#include "base/error.h"
#include "base/text.h"
#include "cli/deploy/deploy_command.h"
#include "cli/terminal/terminal.h"
#include "io/file.h"

namespace tessera {
namespace {

class DeployTemplatesCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy templates"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "output", &output_);
    declare(table, "overwrite", &overwrite_);
  }

  void run(FlagTable*) override {
    const std::filesystem::path folder = output_;
    std::error_code error;
    for (const ShippedFile& file : shipped_files()) {
      if (!overwrite_ && std::filesystem::exists(folder / file.name, error)) {
        fail(ExitCode::kUsage, "--output: {} exists: --overwrite replaces it",
             printable((folder / file.name).string()));
      }
    }
    for (const ShippedFile& file : shipped_files()) {
      create_folder(folder_of(folder / file.name));
      write_text_file(folder / file.name, file.text);
      print("{}\n", (folder / file.name).string());
    }
  }

 private:
  std::string output_;
  bool overwrite_ = false;
};

}  // namespace

std::unique_ptr<Command> make_deploy_templates_command() {
  return std::make_unique<DeployTemplatesCommand>();
}

}  // namespace tessera
