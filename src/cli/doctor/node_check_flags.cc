#include "cli/doctor/node_check_flags.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/doctor/health_report.h"
#include "cli/terminal/terminal.h"
#include "cluster/node/fleet.h"
#include "io/file.h"
#include "kernels/dispatch.h"
#include "platform/cpu.h"
#include "platform/system.h"

namespace tessera {

void run_node_check(const NodeCheckFlags& flags, bool json) {
  NodeCheckOptions options = flags.options;
  if (!options.instruction_set.empty() && !parse_isa(options.instruction_set)) {
    fail(ExitCode::kUsage, "--instruction_set: expected one of {}, found '{}'", isa_names(),
         printable(options.instruction_set));
  }
  const Stopwatch stopwatch;
  const int64_t num_cores = cpu_limits().num_cores();
  const std::string instance =
      flags.instance.empty() ? instance_type(cpu_features().brand, num_cores) : flags.instance;
  options.figures = figures_for(flags.fleet, instance, num_cores);
  for (const std::string& peer : flags.peers) options.peers.push_back(parse_peer(peer));
  options.folder = flags.folder;
  const std::vector<Check> checks = check_node(options);
  if (json) {
    nlohmann::ordered_json report = health_json(checks, flags.ignore);
    report["instance"] = instance;
    report["host"] = host_name();
    report["version"] = TESSERA_VERSION;
    report["seconds"] = stopwatch.seconds();
    print("{}\n", report.dump());
  } else {
    print("{}, {}\n", host_name(), instance);
    print_checks(checks, flags.ignore);
  }
  end_with_health(checks, flags.ignore);
}

void run_fleet_from(const NodeCheckFlags& flags) {
  FleetBuilder builder;
  for (const std::string& file : flags.fleet_from) builder.add(read_text_file(file, kMaxFleetBytes), file);
  const Fleet fleet = builder.build();
  if (fleet.empty()) {
    fail(ExitCode::kBadData, "--fleet_from: no report has a {}", fmt::join(kFleetChecks, " or a "));
  }
  print("{}", fleet_json(fleet));
}

}  // namespace tessera
