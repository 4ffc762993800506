#include "cluster/node/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/json_value.h"
#include "base/median.h"
#include "base/text.h"
#include "forecast/instances/catalogue.h"
#include "io/file.h"
#include "platform/system.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "tessera fleet";
constexpr double kCatalogueShare = 0.5;
// With fewer of a machine's cores, others may use its memory.
constexpr double kMinShareOfCores = 0.75;

double positive(const Json& value, const std::string& origin, const std::string& where) {
  const double number = value.is_number() ? value.get<double>() : 0;
  if (!(number > 0) || !std::isfinite(number)) {
    fail(ExitCode::kBadData, "{}: {}: expected a number above 0, found {}", origin, where, found_text(value));
  }
  return number;
}

std::optional<FleetFigures> expected_of(const std::string& instance, int64_t num_cores) {
  for (const Instance& each : shipped_catalogue()) {
    if (each.name != instance) continue;
    const MachineRates rates = rates_of_instance(each.figures);
    FleetFigures figures;
    figures.medians["compute"] = rates.core_bf16_tflops;
    const double share = static_cast<double>(num_cores) / static_cast<double>(rates.num_cores);
    if (share >= kMinShareOfCores)
      figures.medians["memory_bandwidth"] = rates.memory_gb_per_s * std::min(1.0, share);
    return figures;
  }
  return std::nullopt;
}

FleetFigures parse_figures(const Json& value, const std::string& origin, const std::string& name) {
  if (!value.is_object()) {
    fail(ExitCode::kBadData, "{}: {}: expected an object with nodes and {}, found {}", origin, name,
         fmt::join(kFleetChecks, ", "), found_text(value));
  }
  FleetFigures figures;
  for (const auto& [key, each] : value.items()) {
    const std::string where = name + "." + printable(key);
    if (key == "nodes") {
      figures.num_nodes = static_cast<int64_t>(std::min(1e9, positive(each, origin, where)));
    } else if (std::ranges::find(kFleetChecks, key) != std::end(kFleetChecks)) {
      figures.medians[key] = positive(each, origin, where);
    } else {
      fail(ExitCode::kBadData, "{}: {}: unknown; there are nodes, {}", origin, where,
           fmt::join(kFleetChecks, ", "));
    }
  }
  if (figures.num_nodes < 1) {
    fail(ExitCode::kBadData, "{}: {}: expected nodes, the number of machines its medians are of", origin,
         name);
  }
  return figures;
}

}  // namespace

Fleet parse_fleet(std::string_view text, const std::string& origin) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object() || json.value("format", Json()) != kFormat) {
    fail(ExitCode::kBadData,
         "{}: expected a JSON object with \"format\": \"{}\", as doctor --fleet_from writes it, found '{}'",
         origin, kFormat, printable(text.substr(0, 100), 60));
  }
  if (json.value("version", Json()) != 1) {
    fail(ExitCode::kBadData, "{}: version: expected 1, found {}", origin,
         found_text(json.value("version", Json())));
  }
  const Json instances = json.value("instances", Json());
  if (!instances.is_object()) {
    fail(ExitCode::kBadData, "{}: instances: expected an object, found {}", origin, found_text(instances));
  }
  Fleet fleet;
  for (const auto& [name, value] : instances.items()) {
    fleet[name] = parse_figures(value, origin, "instances." + printable(name));
  }
  return fleet;
}

std::string fleet_json(const Fleet& fleet) {
  nlohmann::ordered_json instances = nlohmann::ordered_json::object();
  for (const auto& [name, figures] : fleet) {
    instances[name]["nodes"] = figures.num_nodes;
    for (const auto& [check, median_value] : figures.medians) instances[name][check] = median_value;
  }
  return nlohmann::ordered_json{{"format", kFormat}, {"version", 1}, {"instances", instances}}.dump(2) + "\n";
}

void FleetBuilder::add(std::string_view reports, const std::string& origin) {
  std::istringstream in{std::string(reports)};
  int64_t number = 0;
  while ((in >> std::ws).peek() != std::istringstream::traits_type::eof()) {
    ++number;
    Json report;
    try {
      in >> report;
    } catch (const Json::exception&) {
      fail(ExitCode::kBadData, "{}: report {}: expected the JSON of doctor --node-check --json", origin,
           number);
    }
    if (!report.is_object() || !report.value("instance", Json()).is_string() ||
        !report.value("checks", Json()).is_array()) {
      fail(ExitCode::kBadData, "{}: report {}: expected the JSON of doctor --node-check --json, found {}",
           origin, number, found_text(report));
    }
    auto& of_instance = values_[report["instance"].get<std::string>()];
    for (const Json& check : report["checks"]) {
      if (!check.is_object()) continue;
      const Json name = check.value("name", Json()), value = check.value("value", Json());
      for (const char* compared : kFleetChecks) {
        if (name == compared && value.is_number() && value.get<double>() > 0) {
          of_instance[compared].push_back(value.get<double>());
        }
      }
    }
  }
}

Fleet FleetBuilder::build() const {
  Fleet fleet;
  for (const auto& [instance, checks] : values_) {
    FleetFigures figures;
    for (const auto& [check, values] : checks) {
      figures.medians[check] = median(values);
      figures.num_nodes = std::max<int64_t>(figures.num_nodes, std::ssize(values));
    }
    if (figures.num_nodes > 0) fleet[instance] = std::move(figures);
  }
  return fleet;
}

std::optional<FleetFigures> figures_for(const std::string& fleet, const std::string& instance,
                                        int64_t num_cores) {
  if (fleet.empty()) return expected_of(instance, num_cores);
  if (fleet.find("://") != std::string::npos) {
    fail(ExitCode::kUsage, "--fleet: expected a file, found the address '{}'; mount it, or download it first",
         printable(fleet));
  }
  std::filesystem::path file = fleet;
  if (std::filesystem::is_directory(file)) {
    file /= "fleet.json";
    if (!std::filesystem::exists(file)) return expected_of(instance, num_cores);
  }
  const Fleet known = parse_fleet(read_text_file(file, kMaxFleetBytes), file.string());
  const auto found = known.find(instance);
  return found == known.end() ? expected_of(instance, num_cores) : std::optional(found->second);
}

Check compare_with_fleet(const std::string& check, double value, const std::string& unit,
                         const std::optional<FleetFigures>& figures, double min_share) {
  const auto found = figures ? figures->medians.find(check) : std::map<std::string, double>::const_iterator();
  if (!figures || found == figures->medians.end()) {
    return {.name = check,
            .message = fmt::format("{:.3g} {}; nothing to compare it with (--fleet)", value, unit),
            .value = value,
            .unit = unit};
  }
  // A catalogue estimates.
  if (figures->num_nodes == 0) min_share = std::min(min_share, kCatalogueShare);
  const double share = value / found->second;
  const std::string of = figures->num_nodes == 0
                             ? "what the catalogue expects"
                             : fmt::format("the median of {}", count_of(figures->num_nodes, "node"));
  return at_least(
      check, value, min_share * found->second, unit,
      fmt::format("{:.3g} {}, {:.2f} of {} ({:.3g}){}", value, unit, share, of, found->second,
                  share < min_share ? ": throttled, shared with others, or not the same hardware" : ""));
}

std::string instance_type(const std::string& processor, int64_t num_cores,
                          const std::filesystem::path& root) {
  const std::filesystem::path dmi = root / "sys/class/dmi/id";
  const auto vendor = first_line_of(dmi / "sys_vendor"), product = first_line_of(dmi / "product_name");
  if (vendor == "Amazon EC2" && product) return printable(*product);
  return fmt::format("{}, {}", processor, count_of(num_cores, "core"));
}

}  // namespace tessera
