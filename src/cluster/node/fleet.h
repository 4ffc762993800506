// Records what machines of the same type achieve, to compare one with the others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/check.h"

namespace tessera {

struct FleetFigures {
  int64_t num_nodes = 0;                  // that the medians are of; 0: a catalogue's expectation
  std::map<std::string, double> medians;  // of the value of the check with this name
};
using Fleet = std::map<std::string, FleetFigures>;  // by instance type

// Files of reports and of a fleet are at most this large.
inline constexpr int64_t kMaxFleetBytes = int64_t{256} << 20;

// The checks whose values depend on the machine only, so that comparing makes sense.
inline constexpr const char* kFleetChecks[] = {"compute", "memory_bandwidth"};

// {"format": "tessera fleet", "version": 1, "instances": {"r7i.16xlarge": {"nodes": 12, "compute": 93.1,
// ...}}}. Error(kBadData) in one line with `origin`.
Fleet parse_fleet(std::string_view json, const std::string& origin);
std::string fleet_json(const Fleet& fleet);

// Adds the reports of `tessera doctor --node-check --json`, several of them in one text if it has them one
// after another, and takes the medians by instance type. Reports of sick machines count too, which a median
// withstands. Error(kBadData).
class FleetBuilder {
 public:
  void add(std::string_view reports, const std::string& origin);
  Fleet build() const;

 private:
  std::map<std::string, std::map<std::string, std::vector<double>>> values_;  // [instance][check]
};

// The figures that a machine of this type is compared with: those in `fleet`, a file as above or a folder
// with fleet.json, or what the catalogue expects of num_cores of its cores if `fleet` is "" or lacks the
// type. The catalogue expects no bandwidth of less than 75 % of the cores; nullopt: it lacks the type, too.
// Error(kUsage) for an address.
std::optional<FleetFigures> figures_for(const std::string& fleet, const std::string& instance,
                                        int64_t num_cores);

// Judges a figure of this machine: it fails below `min_share` of the median, or half of what a catalogue
// expects.
Check compare_with_fleet(const std::string& check, double value, const std::string& unit,
                         const std::optional<FleetFigures>& figures, double min_share);

// The type of this machine as EC2 writes it into DMI, "r7i.16xlarge"; elsewhere `processor` and the number of
// cores.
std::string instance_type(const std::string& processor, int64_t num_cores,
                          const std::filesystem::path& root = "/");

}  // namespace tessera
