#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/text.h"
#include "cli/command.h"
#include "cli/terminal/terminal.h"
#include "io/file.h"
#include "monitor/records/page_html.h"
#include "monitor/records/run_report.h"

namespace tessera {
namespace {

class ReportCommand : public Command {
 public:
  std::string name() const override { return "report"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "runs", &runs_);
    declare(table, "output", &output_);
  }

  void run(FlagTable*) override {
    check_page("tessera report");
    const std::vector<std::filesystem::path> folders(runs_.begin(), runs_.end());
    const std::string page = report_page(run_report(folders));
    write_text_file(output_, page);
    print("{}: {}, {}\n", output_, count_of(std::ssize(folders), "run"), format_bytes(std::ssize(page)));
  }

 private:
  std::vector<std::string> runs_;
  std::string output_ = "report.html";
};

}  // namespace

std::unique_ptr<Command> make_report_command() { return std::make_unique<ReportCommand>(); }

}  // namespace tessera
