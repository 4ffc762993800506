#include "settings/run/metrics_settings.h"

#include "base/error.h"
#include "settings/flag_limits.h"

namespace tessera {

void declare_metrics_flags(FlagTable* table, RunSpec* args) {
  limit(table->add(
            "metrics_port", &args->reporting.metrics_port,
            "Serve metrics for Prometheus over HTTP: /metrics, /healthz and /readyz, of the run on rank 0, "
            "of every node on its first rank. 0 takes any free port, which is logged and in "
            "endpoint.json in output_dir. Defaults to 9404 if report_to has prometheus or dashboard; "
            "otherwise nothing is served."),
        {0, 65535});
  Flag& host = table->add(
      "metrics_host", &args->reporting.metrics_host,
      "Address of this machine to listen on. On one that others reach, the page needs a token, a random "
      "one in endpoint.json. TESSERA_METRICS_TOKEN in the environment is a token for page and "
      "metrics.");
  host.value_name = "ADDRESS";
  host.set = [set = host.set](const std::vector<std::string>& values) {
    // getaddrinfo() would take it for all addresses of the machine.
    if (values == std::vector<std::string>{""})
      fail(ExitCode::kUsage,
           "--metrics_host: expected an address of this machine, found nothing; 0.0.0.0 is all");
    set(values);
  };
  limit(
      table->add("health_timeout", &args->reporting.health_timeout_s,
                 "Seconds without a finished step after which /healthz answers 503; 0 is ten minutes or ten "
                 "times the median step, whichever is longer. Work other than steps has an hour."),
      at_least(0));
}

std::optional<int64_t> serving_port(const RunSpec& args) {
  if (args.reporting.metrics_port) return args.reporting.metrics_port;
  if (!args.reporting.reports_to(ReportTo::kPrometheus) && !args.reporting.reports_to(ReportTo::kDashboard))
    return std::nullopt;
  return kDefaultMetricsPort;
}

}  // namespace tessera
