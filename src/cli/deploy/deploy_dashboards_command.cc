#include "cli/deploy/deploy_command.h"
#include "cli/terminal/terminal.h"

namespace tessera {
namespace {

const std::vector<std::string> kDashboards = {"fleet", "run", "rank", "node"};

class DeployDashboardsCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy dashboards"; }

  void declare_flags(FlagTable* table) override {
    declare_common_flags(table);
    declare(table, "monitoring_namespace", &monitoring_namespace_);
    declare(table, "loki_url", &loki_url_);
    // By their titles or in the singular.
    declare(table, "dashboard", &dashboard_, {"all", "fleet", "run", "ranks", "nodes", "rank", "node"});
  }

  void run(FlagTable* table) override {
    if (dashboard_ != "all") {
      write_output(
          dashboard(dashboard_.ends_with('s') ? dashboard_.substr(0, dashboard_.size() - 1) : dashboard_));
      return;
    }
    Value::List dashboards;
    for (const std::string& name : kDashboards) {
      dashboards.push_back(Value::Object{{"name", name}, {"text", dashboard(name)}});
    }
    Value::Object context = variables(*table, {{"dashboards", std::move(dashboards)}});
    context.push_back({"alloy", loki_url_.empty() ? "" : templates().render("config.alloy.jinja", context)});
    write_manifests(templates().render("dashboards.yaml.jinja", context));
  }

 private:
  // Without the common variables, one of which would hide Jinja's namespace().
  std::string dashboard(const std::string& name) const {
    return templates().render("dashboard.json.jinja", {{"dashboard", name}});
  }

  std::string monitoring_namespace_ = "monitoring";
  std::string loki_url_ = "http://loki-gateway.monitoring.svc";
  std::string dashboard_ = "all";
};

}  // namespace

std::unique_ptr<Command> make_deploy_dashboards_command() {
  return std::make_unique<DeployDashboardsCommand>();
}

}  // namespace tessera
