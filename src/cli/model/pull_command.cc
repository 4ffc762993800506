
#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/terminal/hub_report.h"
#include "cli/terminal/terminal.h"
#include "hub/hub.h"
#include "settings/compat/compat_flags.h"

namespace tessera {
namespace {

constexpr Word<RepoType> kRepoTypes[] = {{"model", RepoType::kModel}, {"dataset", RepoType::kDataset}};

class PullCommand : public Command {
 public:
  std::string name() const override { return "pull"; }

  void declare_flags(FlagTable* table) override {
    table->add_foreign_names(compat_hints("pull_hints"));
    declare(table, "repo_id", &repo_id_);
    declare(table, "repo_type", &repo_type_, kRepoTypes);
    declare(table, "revision", &revision_);
    declare(table, "include", &include_);
    declare(table, "exclude", &exclude_);
  }

  void run(FlagTable*) override {
    PullRequest request = {repo(), include_, exclude_};
    HubReport report;
    const std::filesystem::path folder =
        pull(request, hub_settings(), [&](const HubProgress& progress) { report.show(progress); });
    print("{}\n", folder.string());
  }

 private:
  RepoName repo() const {
    const size_t at = repo_id_.find('@');
    RepoName repo;
    repo.type = repo_type_;
    repo.id = repo_id_.substr(0, at);
    if (!is_repo_id(repo.id))
      fail(ExitCode::kUsage, "expected the name of a repository, org/name, found '{}'", printable(repo_id_));
    if (at != std::string::npos && !revision_.empty())
      fail(ExitCode::kUsage, "'{}' and --revision both name a revision", printable(repo_id_));
    const std::string revision = at == std::string::npos ? revision_ : repo_id_.substr(at + 1);
    if (!revision.empty() || at != std::string::npos) repo.revision = revision;
    if (!is_revision_name(repo.revision))
      fail(ExitCode::kUsage, "--revision: expected a branch, tag or commit, found '{}'",
           printable(repo.revision));
    return repo;
  }

  std::string repo_id_;
  RepoType repo_type_ = RepoType::kModel;
  std::string revision_;
  std::vector<std::string> include_;
  std::vector<std::string> exclude_;
};

}  // namespace

std::unique_ptr<Command> make_pull_command() { return std::make_unique<PullCommand>(); }

}  // namespace tessera
