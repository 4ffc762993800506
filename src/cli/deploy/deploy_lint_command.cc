#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "cli/data/text_input.h"
#include "cli/deploy/deploy_command.h"
#include "cli/terminal/terminal.h"
#include "cluster/manifests/lint.h"

namespace tessera {
namespace {

class DeployLintCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy lint"; }

  void declare_flags(FlagTable* table) override { declare(table, "files", &files_); }

  void run(FlagTable*) override {
    std::vector<Manifest> manifests;
    for (const std::string& file : files_) {
      const std::string origin = file == "-" ? "standard input" : file;
      for (Manifest& each : parse_manifests(read_input(file), origin)) manifests.push_back(std::move(each));
    }
    const std::vector<std::string> findings = lint_manifests(manifests);
    for (const std::string& finding : findings) print("{}\n", finding);
    for (const Manifest& each : manifests) {
      if (has_rules(each) || each.kind().empty()) continue;
      print("{}: not checked: there are no rules for this kind of {}\n", printable(each.title(), 500),
            printable(each.api()));
    }
    flush_output();
    const auto num_manifests = static_cast<int64_t>(manifests.size());
    const auto num_checked = static_cast<int64_t>(std::ranges::count_if(manifests, has_rules));
    if (findings.empty()) {
      print("{}{}\n", format_count(num_manifests, "document"),
            num_checked == num_manifests ? ", no finding"
            : num_checked == 0           ? ", none of them checked"
                               : fmt::format(", no finding in the {} that have rules", num_checked));
    } else {
      fail(ExitCode::kBadData, "{} in {}", format_count(std::ssize(findings), "finding"),
           format_count(num_manifests, "document"));
    }
  }

 private:
  std::vector<std::string> files_;
};

}  // namespace

std::unique_ptr<Command> make_deploy_lint_command() { return std::make_unique<DeployLintCommand>(); }

}  // namespace tessera
