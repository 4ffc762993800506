#include "cli/doctor/node_check_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/doctor/health_report.h"
#include "cli/flag_parser.h"
#include "cli/terminal/terminal.h"
#include "cluster/node/node_check.h"
#include "forecast/instances/catalogue.h"
#include "io/file.h"
#include "kernels/dispatch.h"
#include "platform/cpu.h"
#include "platform/system.h"

namespace tessera {
namespace {

constexpr int64_t kMaxReportBytes = int64_t{256} << 20;

// What the catalogue says of the cores of a machine that this process may use; a few cores alone cannot tell
// the bandwidth.
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

void declare_node_check_flags(FlagTable* table, NodeCheckFlags* flags) {
  table->begin_section("Is this node healthy?");
  table->add("node_check", &flags->enabled,
             "Check whether this machine is fit to train, within --seconds: exit code 0 healthy, 1 unhealthy "
             "(a line on standard error for each failed check), 2 not known. Needs no rights; what it may "
             "not see is skipped.");
  table->add("passive", &flags->passive,
             "With --node_check: read counters only. Without it the check loads processors, memory and disk, "
             "and must not run beside a training.");
  table
      ->add("fleet", &flags->fleet,
            "Medians of the fleet, from --fleet_from, to compare this machine with; of a folder its "
            "fleet.json, if it has one. Without it, or for an instance type that it lacks: half of what the "
            "catalogue of instances expects.")
      .value_name = "FILE|DIR";
  table
      ->add("instance", &flags->instance,
            "Instance type of this machine; by default what EC2 says, or its processor.")
      .value_name = "TYPE";
  limit_flag(table->add("min_share", &flags->min_share, "Least share of the fleet's median."), 0, 1);
  table->add("instruction_set", &flags->instruction_set, "Instruction set that must work, such as amx_bf16.")
      .value_name = "NAME";
  limit_flag(table->add("cards", &flags->num_cards, "NVIDIA cards that must be there, at the least."), 0,
             1024);
  table->add("peers", &flags->peers, "Other machines that must answer over TCP.").value_name = "HOST:PORT...";
  table
      ->add("folder", &flags->folder,
            "Folder to try the disk in; by default that for temporary files, if it can be written.")
      .value_name = "DIR";
  table->add("ignore", &flags->ignore, "Checks that do not count.").value_name = "NAME...";
  table
      ->add("fleet_from", &flags->fleet_from,
            "Print the medians of these files instead, which hold what --node_check --json has printed on "
            "other machines, one report or several each.")
      .value_name = "FILE...";
}

void run_node_check(const NodeCheckFlags& flags, double seconds, bool json) {
  if (!flags.instruction_set.empty() && !parse_isa(flags.instruction_set)) {
    fail(ExitCode::kUsage, "--instruction_set: expected one of {}, found '{}'", isa_names(),
         printable(flags.instruction_set));
  }
  const Stopwatch stopwatch;
  const int64_t num_cores = cpu_limits().num_cores();
  const std::string instance =
      flags.instance.empty() ? instance_type(cpu_features().brand, num_cores) : flags.instance;
  NodeCheckOptions options;
  options.seconds = seconds;
  options.is_passive = flags.passive;
  options.instruction_set = flags.instruction_set;
  options.num_cards = flags.num_cards;
  options.figures = figures_for(flags, instance, num_cores);
  options.min_share = flags.min_share;
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
