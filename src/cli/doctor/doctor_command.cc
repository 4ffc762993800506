#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/command.h"
#include "cli/doctor/doctor_report.h"
#include "cli/doctor/health_report.h"
#include "cli/doctor/node_check_flags.h"
#include "cli/terminal/terminal.h"
#include "cluster/node/nvidia_checks.h"
#include "cluster/storage/offload_check.h"
#include "cluster/storage/storage_check.h"
#include "formats/json.h"
#include "kernels/dispatch.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/onednn_products.h"
#include "kernels/registry.h"
#include "platform/cpu.h"
#include "platform/memory_info.h"
#include "platform/nvidia_cards.h"
#include "platform/peak.h"
#include "platform/prefault.h"
#include "platform/thread_pool.h"
#include "platform/topology.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr Isa kAllIsas[] = {Isa::kAmxBf16, Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx2, Isa::kBaseline};

struct Findings {
  CpuFeatures cpu;
  AmxPermission amx;
  PoolThreads threads;
  int64_t machine_cpus = 0;
  std::vector<NumaNode> nodes;
  HugePages huge;
  MemoryInfo memory;
  std::vector<KernelReport> kernels;
  std::vector<ComputePeak> peaks;
  MemoryBandwidth bandwidth;
  std::optional<int64_t> huge_bytes;  // of a buffer of kHugePageTrialBytes
  double loop_seconds = 0;            // an empty parallel loop
  RankFindings ranks;
  NvidiaCards cards;
  std::vector<Check> card_checks;
};

Findings examine() {
  Findings f;
  const NvidiaCards cards_before = nvidia_cards();
  f.threads = examine_threads();
  ThreadPool pool(f.threads.num_threads());
  f.cpu = cpu_features();
  f.amx = request_amx_permission();
  f.machine_cpus = sysconf(_SC_NPROCESSORS_ONLN);
  f.nodes = numa_nodes();
  f.huge = huge_pages();
  f.memory = memory_info();
  f.kernels = kernel_reports();
  f.peaks = measure_compute_peaks(pool);
  f.bandwidth = measure_memory_bandwidth(pool);
  f.huge_bytes = try_huge_pages(pool);
  f.loop_seconds = measure_empty_loop(pool);
  f.ranks = examine_ranks(node_processors(), interface_addresses());
  examine_fabrics(&f.ranks);
  f.cards = nvidia_cards();
  f.card_checks = check_nvidia_cards(cards_before, f.cards);
  return f;
}

OrderedJson kernels_json(const std::vector<KernelReport>& kernels) {
  OrderedJson out = OrderedJson::array();
  for (const KernelReport& kernel : kernels) {
    OrderedJson implementations = OrderedJson::array();
    for (size_t i = 0; i < kernel.implementations.size(); ++i) {
      const ImplementationReport& row = kernel.implementations[i];
      implementations.push_back({{"name", row.name},
                                 {"isa", isa_name(row.isa)},
                                 {"used", i == kernel.chosen},
                                 {"refusal", row.refusal}});
    }
    out.push_back({{"kernel", kernel.kernel}, {"implementations", implementations}});
  }
  return out;
}

OrderedJson to_json(const Findings& f) {
  OrderedJson cpus = threads_json(f.threads, f.machine_cpus);
  cpus["empty_loop_seconds"] = f.loop_seconds;
  OrderedJson isas = OrderedJson::array();
  for (const Isa isa : kAllIsas) isas.push_back({{"name", isa_name(isa)}, {"refusal", machine_refusal(isa)}});
  OrderedJson nodes = OrderedJson::array();
  for (const NumaNode& node : f.nodes) {
    nodes.push_back(
        {{"id", node.id}, {"cpus", format_cpu_list(node.cpus)}, {"memory_bytes", node.memory_bytes}});
  }
  OrderedJson pools = OrderedJson::array();
  for (const HugePagePool& pool : f.huge.pools) {
    pools.push_back(
        {{"page_bytes", pool.page_bytes}, {"total", pool.total_pages}, {"free", pool.free_pages}});
  }
  OrderedJson peaks = OrderedJson::array();
  for (const ComputePeak& peak : f.peaks) {
    peaks.push_back(
        {{"isa", peak.instruction_set}, {"arithmetic", peak.arithmetic}, {"tflops", peak.tflops}});
  }
  OrderedJson report = {
      {"version", TESSERA_VERSION},
      {"processor", f.cpu.brand},
      {"instruction_sets", isas},
      {"isa_limit", isa_name(isa_limit())},
      {"amx_permission", {{"granted", f.amx.granted}, {"reason", f.amx.reason}}},
      {"cpu_fault", f.cpu.fault},
      {"onednn", {{"isa", isa_name(onednn_isa())}, {"reason", machine_onednn_limit().reason}}},
      {"cpus", cpus},
      {"numa_nodes", nodes},
      {"huge_pages",
       {{"transparent", f.huge.transparent},
        {"trial_bytes", kHugePageTrialBytes},
        {"huge_bytes", or_null(f.huge_bytes)},
        {"reserved", pools}}},
      {"memory",
       {{"total_bytes", f.memory.total_bytes},
        {"available_bytes", f.memory.available_bytes},
        {"cgroup_limit_bytes", or_null(f.memory.cgroup_limit_bytes)},
        {"cgroup_used_bytes", or_null(f.memory.cgroup_used_bytes)},
        {"free_for_process_bytes", f.memory.free_for_process_bytes}}},
      {"ranks", ranks_json(f.ranks)},
      {"kernels", kernels_json(f.kernels)},
      {"compute_peaks", peaks},
      {"memory_bandwidth",
       {{"best_gb_per_s", f.bandwidth.best_gb_per_s()},
        {"copy_gb_per_s", f.bandwidth.copy_gb_per_s},
        {"streaming_copy_gb_per_s", f.bandwidth.streaming_copy_gb_per_s},
        {"update_gb_per_s", f.bandwidth.update_gb_per_s},
        {"triad_gb_per_s", f.bandwidth.triad_gb_per_s},
        {"array_bytes", f.bandwidth.array_bytes}}},
  };
  if (!f.cards.is_empty()) report["nvidia"] = cards_json(f.cards, f.card_checks);
  return report;
}

// A value longer than a line continues below.
void print_row(const std::string& name, const std::string& value) {
  constexpr int64_t kValueColumn = 22;
  constexpr int64_t kWidth = 80;
  const std::string lines = wrap_text(value, kValueColumn, kWidth);
  print("  {:<{}}{}{}", name, kValueColumn - 2, lines.substr(std::min<size_t>(kValueColumn, lines.size())),
        lines.ends_with('\n') ? "" : "\n");
}

void print_processor(const Findings& f) {
  print("Processor\n");
  print_row("model", f.cpu.brand);
  for (const Isa isa : kAllIsas) {
    const std::string refusal = machine_refusal(isa);
    print_row(std::string(isa_name(isa)), refusal.empty() ? "yes" : "no: " + refusal);
  }
  print_row("AMX permission", f.amx.granted ? "granted" : "no: " + f.amx.reason);
  const std::string& reason = machine_onednn_limit().reason;
  print_row("oneDNN",
            fmt::format("up to {}{}{}", isa_name(onednn_isa()), reason.empty() ? "" : ": ", reason));
  print_row("limit", fmt::format("{} (TESSERA_ISA {})", isa_name(isa_limit()),
                                 std::getenv("TESSERA_ISA") == nullptr ? "not set" : "set"));
  for (const auto& [name, value] : thread_rows(f.threads, f.machine_cpus)) print_row(name, value);
  const auto cache = [](int name) { return format_bytes(std::max<int64_t>(sysconf(name), 0)); };
  print_row("caches", fmt::format("L1 {}, L2 {}, L3 {}", cache(_SC_LEVEL1_DCACHE_SIZE),
                                  cache(_SC_LEVEL2_CACHE_SIZE), cache(_SC_LEVEL3_CACHE_SIZE)));
}

void print_memory(const Findings& f) {
  print("\nMemory\n");
  print_row("total", format_bytes(f.memory.total_bytes));
  print_row("available", format_bytes(f.memory.available_bytes));
  print_row("cgroup limit", f.memory.cgroup_limit_bytes
                                ? fmt::format("{}, {} in use", format_bytes(*f.memory.cgroup_limit_bytes),
                                              format_bytes(f.memory.cgroup_used_bytes.value_or(0)))
                                : "none");
  print_row("free for a run", format_bytes(f.memory.free_for_process_bytes));
  for (const NumaNode& node : f.nodes) {
    print_row(fmt::format("NUMA node {}", node.id),
              fmt::format("{}, processors {}", format_bytes(node.memory_bytes), format_cpu_list(node.cpus)));
  }
  if (f.nodes.empty()) print_row("NUMA nodes", "unknown: the kernel lists none");
  const std::string& mode = f.huge.transparent;
  print_row("huge pages", mode.empty()      ? "unknown: no transparent huge pages in this kernel"
                          : mode == "never" ? "transparent: never; large buffers will miss the TLB more often"
                                            : "transparent: " + mode + ", used for large buffers");
  if (f.huge_bytes) {
    print_row("", fmt::format("{} of a buffer of {} are huge pages", format_bytes(*f.huge_bytes),
                              format_bytes(kHugePageTrialBytes)));
  }
  for (const HugePagePool& pool : f.huge.pools) {
    if (pool.total_pages == 0) continue;
    print_row("", fmt::format("reserved: {} of {}, {} free; not used", pool.total_pages,
                              format_bytes(pool.page_bytes), pool.free_pages));
  }
}

void print_ranks(const Findings& f) {
  print("\nRanks\n");
  for (const auto& [name, value] : rank_rows(f.ranks)) print_row(name, value);
}

void print_cards(const Findings& f) {
  if (f.cards.is_empty()) return;
  print("\nNVIDIA cards\n");
  for (const auto& [name, value] : card_rows(f.cards, f.card_checks)) print_row(name, value);
}

std::string implementation_name(const ImplementationReport& row) {
  return row.name == isa_name(row.isa) ? row.name : fmt::format("{} {}", row.name, isa_name(row.isa));
}

// Shows which implementation is used and why the others are not: they are refused, or ranked lower in the
// table.
void print_kernels(const Findings& f) {
  print("\nKernels: the best ranked that runs here, and why not the others\n");
  for (const KernelReport& kernel : f.kernels) {
    print_row(kernel.kernel, implementation_name(kernel.implementations[kernel.chosen]));
    if (kernel.kernel == "gemm" && !gemm_left_to_others().empty()) {
      print_row("", fmt::format("{}: faster there", gemm_left_to_others()));
    }
    std::vector<std::string> behind;
    for (size_t i = 0; i < kernel.implementations.size(); ++i) {
      const ImplementationReport& row = kernel.implementations[i];
      if (!row.refusal.empty()) {
        print_row("", fmt::format("refused: {}: {}", implementation_name(row), row.refusal));
      } else if (i != kernel.chosen) {
        behind.push_back(implementation_name(row));
      }
    }
    if (!behind.empty()) print_row("", fmt::format("ranked below: {}", fmt::join(behind, ", ")));
  }
}

void print_speed(const Findings& f) {
  const int64_t num_threads = f.threads.num_threads();
  print("\nMeasured now, {} together\n", count_of(num_threads, "thread"));
  for (const ComputePeak& peak : f.peaks) {
    print_row(peak.instruction_set,
              fmt::format("{:.3g} TFLOPS, {:.3g} a thread ({})", peak.tflops,
                          peak.tflops / static_cast<double>(num_threads), peak.arithmetic));
  }
  print_row("parallel loop", fmt::format("{:.2g} us when empty", f.loop_seconds * 1e6));
  print_row("memory copy", fmt::format("{:.3g} GB/s read + written, {:.3g} past the caches",
                                       f.bandwidth.copy_gb_per_s, f.bandwidth.streaming_copy_gb_per_s));
  print_row("memory update",
            fmt::format("{:.3g} GB/s read + written, in place", f.bandwidth.update_gb_per_s));
  print_row("memory triad", fmt::format("{:.3g} GB/s, a = b + s c on {} arrays", f.bandwidth.triad_gb_per_s,
                                        format_bytes(f.bandwidth.array_bytes)));
}

class DoctorCommand : public Command {
 public:
  std::string name() const override { return "doctor"; }

  bool is_for_ranks() const override { return true; }
  void declare_flags(FlagTable* table) override {
    declare(table, "json", &json_);
    declare(table, "seconds", &node_check_.options.seconds);
    table->begin_section("Is this node healthy?");
    declare(table, "node_check", &node_check_.enabled);
    declare(table, "passive", &node_check_.options.is_passive);
    declare(table, "fleet", &node_check_.fleet);
    declare(table, "instance", &node_check_.instance);
    declare(table, "min_share", &node_check_.options.min_share);
    declare(table, "instruction_set", &node_check_.options.instruction_set);
    declare(table, "cards", &node_check_.options.num_cards);
    declare(table, "peers", &node_check_.peers);
    declare(table, "folder", &node_check_.folder);
    declare(table, "ignore", &node_check_.ignore);
    declare(table, "fleet_from", &node_check_.fleet_from);
    table->begin_section("Is this folder fast and safe?");
    declare(table, "storage", &storage_);
    declare(table, "offload_dir", &offload_dir_);
  }

  void run(FlagTable* table) override {
    check_flags(*table);
    if (!node_check_.fleet_from.empty()) return run_fleet_from(node_check_);
    if (node_check_.enabled) return run_node_check(node_check_, json_);
    if (!storage_.empty()) return show(check_storage(storage_, node_check_.options.seconds));
    if (!offload_dir_.empty()) return show(check_offload(offload_dir_, node_check_.options.seconds));
    const Findings findings = examine();
    if (json_) {
      print("{}\n", to_json(findings).dump(2));
      return;
    }
    print_processor(findings);
    print_memory(findings);
    print_ranks(findings);
    print_cards(findings);
    print_kernels(findings);
    print_speed(findings);
  }

 private:
  void check_flags(const FlagTable& table) const {
    const bool checks_folder = !storage_.empty() || !offload_dir_.empty();
    if (node_check_.enabled + !storage_.empty() + !offload_dir_.empty() + !node_check_.fleet_from.empty() >
        1) {
      fail(ExitCode::kUsage, "expected one of --node_check, --storage, --offload_dir and --fleet_from");
    }
    if (table.is_set("seconds") && !node_check_.enabled && !checks_folder) {
      fail(ExitCode::kUsage, "--seconds needs --node_check, --storage or --offload_dir");
    }
    if (node_check_.enabled) return;
    for (const char* flag :
         {"passive", "fleet", "instance", "min_share", "instruction_set", "peers", "folder", "ignore"}) {
      if (table.is_set(flag)) fail(ExitCode::kUsage, "--{} needs --node_check", flag);
    }
  }

  void show(const std::vector<Check>& checks) const {
    if (json_) {
      print("{}\n", health_json(checks).dump());
    } else {
      print_checks(checks);
    }
    end_with_health(checks);
  }

  bool json_ = false;
  NodeCheckFlags node_check_;
  std::string storage_;
  std::string offload_dir_;
};

}  // namespace

std::unique_ptr<Command> make_doctor_command() { return std::make_unique<DoctorCommand>(); }

}  // namespace tessera
