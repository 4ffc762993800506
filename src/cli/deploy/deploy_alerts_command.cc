#include <deque>
#include <utility>

#include "cli/deploy/deploy_command.h"

namespace tessera {
namespace {

class DeployAlertsCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy alerts"; }

  void declare_flags(FlagTable* table) override {
    declare_common_flags(table);
    declare(table, "monitoring_namespace", &monitoring_namespace_);
    declare(table, "release", &release_);
    declare(table, "token_secret", &token_secret_);
    declare(table, "runbook_url", &runbook_url_);
    table->begin_section("Thresholds");
    for (const std::string& flag : own_fields().names()) {
      if (table->find(flag) == nullptr) declare(table, flag, &thresholds_.emplace_back());
    }
  }

  void run(FlagTable* table) override {
    write_manifests(templates().render("alerts.yaml.jinja", variables(*table, {})));
  }

 private:
  std::string monitoring_namespace_ = "monitoring";
  std::string release_ = "prometheus";
  std::string token_secret_;
  std::string runbook_url_ = "docs/bottlenecks.md";
  std::deque<double> thresholds_;  // by flags that are variables of the template too
};

}  // namespace

std::unique_ptr<Command> make_deploy_alerts_command() { return std::make_unique<DeployAlertsCommand>(); }

}  // namespace tessera
