#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/text.h"
#include "cli/data/text_input.h"
#include "cli/deploy/deploy_command.h"
#include "cli/terminal/terminal.h"
#include "cluster/jobs/server_check.h"
#include "cluster/manifests/lint.h"

namespace tessera {
namespace {

class DeployLintCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy lint"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "files", &files_);
    declare(table, "server", &asks_server_);
  }

  void run(FlagTable*) override {
    std::vector<Manifest> manifests;
    std::string all;
    for (const std::string& file : files_) {
      const std::string origin = file == "-" ? "standard input" : file;
      const std::string text = read_input(file);
      for (Manifest& each : parse_manifests(text, origin)) manifests.push_back(std::move(each));
      all += text + "\n---\n";
    }
    std::vector<std::string> findings = lint_manifests(manifests);
    if (asks_server_) {
      ServerCheck server = check_on_server(Kubectl(process_environment()), all, manifests);
      std::ranges::move(server.findings, std::back_inserter(findings));
      for (const std::string& note : server.notes) print("{}\n", note);
    }
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
  bool asks_server_ = false;
};

}  // namespace

std::unique_ptr<Command> make_deploy_lint_command() { return std::make_unique<DeployLintCommand>(); }

}  // namespace tessera
