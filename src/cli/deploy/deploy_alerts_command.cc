#include <array>

#include "cli/deploy/deploy_command.h"
#include "cli/flag_parser.h"
#include "cluster/manifests/names.h"

namespace tessera {
namespace {

struct Threshold {
  const char* name;  // of the flag and of the variable in alerts.yaml.jinja
  double value;
  const char* help;
};

constexpr std::array kThresholds = std::to_array<Threshold>({
    {"stalled_fraction", 0.5, "TesseraStalled: age of the last progress, relative to the limit of /healthz."},
    {"restarts_per_hour", 3, "TesseraRestartLoop: starts within an hour after the first one."},
    {"interruptions", 3, "TesseraInterruptedOften: interruptions of a job within six hours."},
    {"loss_spikes_per_hour", 3, "TesseraLossSpiking: steps within an hour whose loss stood out."},
    {"checkpoint_age_s", 7200, "TesseraCheckpointTooOld: seconds since the last complete checkpoint."},
    {"checkpoint_write_s", 90,
     "TesseraCheckpointSlow: seconds for a checkpoint; the jobs' --grace_period_s."},
    {"disk_free_fraction", 0.05, "TesseraDiskNearlyFull: free share of the volume of output_dir."},
    {"straggler_fraction", 0.15, "TesseraStraggler: time that a rank computes beyond the median rank's."},
    {"mfu_fraction", 0.7, "TesseraLowMfu: MFU relative to the median of all jobs, if there are three."},
    {"rows_fraction", 0.1, "TesseraDataSlow: share of the time that goes into choosing and reading rows."},
    {"wait_fraction", 0.3, "TesseraWaiting: share of the time that ranks wait for each other."},
    {"retransmits_fraction", 0.01, "TesseraNetworkRetransmits: share of TCP segments that are sent again."},
    {"throttled_fraction", 0.05, "TesseraCpuThrottled: seconds that threads are stopped per second."},
    {"memory_fraction", 0.95, "TesseraMemoryNearLimit: memory used, relative to the limit."},
    {"numa_miss_mb_per_s", 100, "TesseraNumaMisses: memory from the wrong NUMA node, in MB per second."},
});

class DeployAlertsCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy alerts"; }

  void declare_flags(FlagTable* table) override {
    declare_common_flags(table);
    table->add("monitoring_namespace", &monitoring_namespace_, "Namespace of the PrometheusRule.");
    table->add("release", &release_,
               "Label `release` by which the Prometheus operator chooses what it reads.");
    table->add("token_secret", &token_secret_,
               "Secret in --namespace whose key token the pods ask for: tessera-metrics if there is one "
               "(`tessera deploy runtime --secrets`). Without it the metrics need no token.");
    table->add("runbook_url", &runbook_url_, "Address of docs/bottlenecks.md, for the links of the alerts.");
    table->begin_section("Thresholds");
    for (size_t i = 0; i < kThresholds.size(); ++i) {
      values_[i] = kThresholds[i].value;
      limit_flag(table->add(kThresholds[i].name, &values_[i], kThresholds[i].help), 0, 1e9);
    }
  }

  void run(FlagTable*) override {
    check_label("release", release_);
    if (!token_secret_.empty()) check_object_name("token_secret", token_secret_);
    check_text("runbook_url", runbook_url_);
    check_label("monitoring_namespace", monitoring_namespace_);
    Value::Object context = common_context();
    context.push_back({"monitoring_namespace", monitoring_namespace_});
    context.push_back({"release", release_});
    context.push_back({"token_secret", token_secret_});
    context.push_back({"runbook_url", runbook_url_});
    for (size_t i = 0; i < kThresholds.size(); ++i) context.push_back({kThresholds[i].name, values_[i]});
    write_manifests(templates().render("alerts.yaml.jinja", context));
  }

 private:
  std::string monitoring_namespace_ = "monitoring";
  std::string release_ = "prometheus";
  std::string token_secret_;
  std::string runbook_url_ = "docs/bottlenecks.md";
  std::array<double, kThresholds.size()> values_ = {};
};

}  // namespace

std::unique_ptr<Command> make_deploy_alerts_command() { return std::make_unique<DeployAlertsCommand>(); }

}  // namespace tessera
