#include "cli/doctor/doctor_report.h"

#include <fmt/format.h>

#include "base/text.h"
#include "formats/json.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string interface_of(const RankFindings& f) {
  for (const InterfaceAddress& each : f.interfaces) {
    if (each.address == f.told.address) return each.interface;
  }
  return "no interface";
}

bool is_reachable(const RankFindings& f) {
  for (const InterfaceAddress& each : f.interfaces) {
    if (each.address == f.told.address) return !each.is_loopback;
  }
  return false;
}

std::string address_text(const RankFindings& f) {
  if (!f.told_error.empty()) return f.told_error;
  if (!is_reachable(f))
    return "none: this machine has only a loopback interface, so a job cannot span machines";
  const std::string where = fmt::format("{} ({})", f.told.address, interface_of(f));
  if (!f.told.is_guess) return where + ", from GLOO_SOCKET_IFNAME";
  return where + ", unless another interface reaches node 0; --interface chooses";
}

std::string speed_text(int64_t bits_per_s) {
  return bits_per_s == 0 ? std::string()
                         : fmt::format(" {:.3g} Gbit/s", static_cast<double>(bits_per_s) / 1e9);
}

// A row for each provider: its domains.
void add_fabric_rows(const RankFindings& f, DoctorRows* rows) {
  rows->emplace_back("fabrics", "tcp: Tessera's own connections; used unless --fabric chooses another");
  if (!f.fabrics_error.empty()) rows->emplace_back("", f.fabrics_error);
  for (size_t i = 0; i < f.fabrics.size();) {
    const std::string& provider = f.fabrics[i].provider;
    std::vector<std::string> domains;
    for (; i < f.fabrics.size() && f.fabrics[i].provider == provider; ++i) {
      domains.push_back(f.fabrics[i].domain + speed_text(f.fabrics[i].bits_per_s));
    }
    rows->emplace_back("", fmt::format("{}: {}", provider, fmt::join(domains, ", ")));
  }
}

}  // namespace

nlohmann::ordered_json ranks_json(const RankFindings& f) {
  OrderedJson interfaces = OrderedJson::array();
  for (const InterfaceAddress& each : f.interfaces) {
    interfaces.push_back(
        {{"name", each.interface}, {"address", each.address}, {"loopback", each.is_loopback}});
  }
  OrderedJson fabrics = OrderedJson::array();
  for (const FabricDomain& each : f.fabrics) {
    fabrics.push_back({{"provider", each.provider},
                       {"domain", each.domain},
                       {"bits_per_s", each.bits_per_s > 0 ? OrderedJson(each.bits_per_s) : OrderedJson()}});
  }
  return {{"nproc_per_node_auto", f.auto_ranks},
          {"threads_per_rank", f.threads_per_rank},
          {"interfaces", interfaces},
          {"address", is_reachable(f) ? OrderedJson(f.told.address) : OrderedJson()},
          {"address_error", f.told_error},
          {"open_files", or_null(f.open_files)},
          {"fabrics", fabrics},
          {"fabrics_error", f.fabrics_error}};
}

DoctorRows rank_rows(const RankFindings& f) {
  DoctorRows rows;
  rows.emplace_back("nproc_per_node auto",
                    fmt::format("{} {}, one for each NUMA node, {} {} each", f.auto_ranks,
                                f.auto_ranks == 1 ? "rank" : "ranks", f.threads_per_rank,
                                f.threads_per_rank == 1 ? "thread" : "threads"));
  if (!f.processors_message.empty()) rows.emplace_back("", f.processors_message);
  std::vector<std::string> interfaces;
  for (const InterfaceAddress& each : f.interfaces) {
    interfaces.push_back(fmt::format("{} {}", each.interface, each.address));
  }
  rows.emplace_back("interfaces", fmt::format("{}", fmt::join(interfaces, ", ")));
  rows.emplace_back("address for others", address_text(f));
  rows.emplace_back("open files", f.open_files
                                      ? fmt::format("{} a process; node 0 needs one for each rank of a job",
                                                    format_count(*f.open_files))
                                      : "no limit");
  add_fabric_rows(f, &rows);
  rows.emplace_back("shared memory", "anonymous (memfd): the size of /dev/shm does not matter");
  return rows;
}

}  // namespace tessera
