// The machines that can be rented: a data file of instance types (instances.json, described by docs/plan.md
// and stated by instances.schema.json), part of the program and replaceable by a file of the user.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "forecast/time/machine_rates.h"

namespace tessera {

// A kind of NVIDIA card, and what one of it has.
struct Card {
  std::string name;          // "NVIDIA L40S"
  int64_t memory_bytes = 0;  // as advertised
  CardFigures figures;

  // Memory that a run finds free: the driver, the context and the kernels take the rest.
  int64_t usable_bytes() const;
};

struct Instance {
  std::string name;  // "c7i.48xlarge"
  std::string family;
  std::string provider;
  std::string region;  // of the price
  std::string date;    // of the price: "2026-07-20"
  std::string processor;
  InstanceFigures figures;
  int64_t num_vcpus = 0;
  int64_t num_numa_nodes = 1;
  int64_t memory_bytes = 0;  // as advertised
  double burst_gbps = 0;     // for minutes; figures.network_gbps is sustained
  int64_t num_efa_cards = 0;
  int64_t nvme_gb = 0;  // local disks
  int64_t num_cards = 0;
  Card card;                           // each of them
  double usd_per_hour = 0;             // 0 = not known
  double spot_share = 1;               // of usd_per_hour
  double watts = 0;                    // of the processor's share at full load; 0 = not known
  std::vector<std::string> estimates;  // fields without a source

  // The share of memory that processes can use.
  int64_t usable_bytes() const;
};

// In the order of the file. Error(kBadData), one line with `origin`, the field, what was expected and found.
std::vector<Instance> parse_catalogue(std::string_view json, const std::string& origin);
std::vector<Instance> read_catalogue(const std::filesystem::path& path);
// The one that is part of the program.
std::vector<Instance> shipped_catalogue();
// The one in this file, "" = the shipped one.
std::vector<Instance> plan_catalogue(const std::string& path);
// Its text.
std::string_view shipped_catalogue_json();

// The instances of a catalogue without cards, where runs on processors are looked for, and those with cards.
std::vector<Instance> without_cards(std::vector<Instance> catalogue);
std::vector<Instance> with_cards(std::vector<Instance> catalogue);
// The instances with cards, or those without, that can be rented by the hour and match any of `patterns`
// (select_instances()); none or "all" stand for all.
std::vector<Instance> rentable_instances(std::vector<Instance> catalogue, bool on_cards,
                                         const std::vector<std::string>& patterns);
// The card of a catalogue that the driver calls `name`: one all of whose name's words are in it, as those of
// "NVIDIA A100 40GB" are in "NVIDIA A100-SXM4-40GB". Null if there is none.
const Card* find_card(const std::vector<Instance>& catalogue, std::string_view name);

// Instances that match any of the names or globs ("c7i.*"), in the order of the catalogue. Error(kUsage) for
// a pattern that matches none.
std::vector<Instance> select_instances(const std::vector<Instance>& catalogue,
                                       const std::vector<std::string>& patterns);

}  // namespace tessera
