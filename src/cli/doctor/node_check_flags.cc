#include "cli/doctor/node_check_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/doctor/health_report.h"
#include "cli/terminal/terminal.h"
#include "forecast/instances/catalogue.h"
#include "io/file.h"
#include "kernels/dispatch.h"
#include "platform/cpu.h"
#include "platform/system.h"

namespace tessera {
namespace {

constexpr int64_t kMaxReportBytes = int64_t{256} << 20;

// Returns what the catalogue expects of the cores that this process may use, without a bandwidth if they are
// less than 75% of the machine's cores.
std::optional<FleetFigures> expected_of(const std::string& instance, int64_t num_cores) {
  for (const Instance& each : shipped_catalogue()) {
    if (each.name != instance) continue;
    const MachineRates rates = rates_of_instance(each.facts);
    FleetFigures figures;
    figures.medians["compute"] = rates.core_bf16_tflops;
    const double share = static_cast<double>(num_cores) / static_cast<double>(rates.num_cores);
    if (share >= 0.75) figures.medians["memory_bandwidth"] = rates.memory_gb_per_s * std::min(1.0, share);
    return figures;
  }
  return std::nullopt;
}

std::optional<FleetFigures> figures_for(const NodeCheckFlags& flags, const std::string& instance,
                                        int64_t num_cores) {
  if (flags.fleet.empty()) return expected_of(instance, num_cores);
  if (flags.fleet.find("://") != std::string::npos) {
    fail(ExitCode::kUsage, "--fleet: expected a file, found the address '{}'; mount it, or download it first",
         printable(flags.fleet));
  }
  std::filesystem::path file = flags.fleet;
  if (std::filesystem::is_directory(file)) {
    file /= "fleet.json";
    if (!std::filesystem::exists(file)) return expected_of(instance, num_cores);
  }
  const Fleet fleet = parse_fleet(read_text_file(file, kMaxReportBytes), file.string());
  const auto found = fleet.find(instance);
  return found == fleet.end() ? expected_of(instance, num_cores) : std::optional(found->second);
}

}  // namespace

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
  options.figures = figures_for(flags, instance, num_cores);
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
  for (const std::string& file : flags.fleet_from) builder.add(read_text_file(file, kMaxReportBytes), file);
  const Fleet fleet = builder.build();
  if (fleet.empty()) {
    fail(ExitCode::kBadData, "--fleet_from: no report has a {}", fmt::join(kFleetChecks, " or a "));
  }
  print("{}", fleet_json(fleet));
}

}  // namespace tessera
