#include "forecast/instances/planned_machine.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "devices/measure/training_peak.h"
#include "devices/planned_card.h"
#include "devices/planned_cpu.h"
#include "forecast/instances/catalogue.h"
#include "forecast/time/measured_network.h"
#include "io/disk_rate.h"
#include "io/file.h"
#include "platform/memory_info.h"
#include "platform/thread_pool.h"
#include "settings/derived.h"

namespace tessera {
namespace {

// This machine with the network of many. Its speed is not known yet.
PlanMachine machine_here(int64_t num_cores) {
  const MemoryInfo info = memory_info();
  PlanMachine machine;
  machine.num_cores = num_cores;
  machine.cluster.network_gbps = 25;
  machine.cluster.node_memory_bytes =
      std::min(info.total_bytes, info.cgroup_limit_bytes.value_or(info.total_bytes));
  machine.cluster.memory_is_of_this_machine = true;
  return machine;
}

// nullopt without vector instructions.
std::optional<double> measured_tflops(int64_t num_threads, DType dtype) {
  constexpr int kNumMeasurements = 10;  // 70 ms in total; the best counts
  ThreadPool pool(num_threads);
  TrainingPeak peak(pool, dtype);
  if (!peak.best()) return std::nullopt;
  while (peak.num_measurements() < kNumMeasurements) peak.measure_again();
  return peak.best_tflops();
}

double peak_of(const MachineRates& rates, DType dtype) {
  return static_cast<double>(rates.num_cores) *
         (dtype == DType::kBF16 ? rates.core_bf16_tflops : rates.core_f32_tflops);
}

PlanMachine this_processor(const PlanMachineFlags& flags, const RunSpec& spec, int64_t num_cores) {
  const DType dtype = spec.precision.dtype;
  PlanMachine machine = machine_here(num_cores);
  ClusterShape& cluster = machine.cluster;
  std::optional<double> tflops = flags.tflops;
  if (flags.machine == "here") {
    ThreadPool pool(num_cores);
    cluster.rates = measured_rates(pool);
    cluster.rates_are_of_this_machine = true;
  } else if (!tflops && spec.reporting.measure_peak) {
    tflops = measured_tflops(num_cores, dtype);
    cluster.rates_are_of_this_machine = true;
  }
  if (tflops) cluster.rates = rates_of_this_processor(*tflops, num_cores, dtype);
  if (flags.mfu && cluster.rates)
    cluster.rates = rates_of_peak(peak_of(*cluster.rates, dtype), num_cores, *flags.mfu);
  return machine;
}

// The name of the card that is here.
std::string name_of_card(const OpsFactory& ops) {
  ThreadPool pool(1);
  return std::string(ops(pool)->device().name());
}

// This machine, and the card that is here; times if the catalogue knows its kind.
PlanMachine this_card(const PlanMachineFlags& flags, const RunSpec& spec, int64_t num_cores) {
  PlanMachine machine = machine_here(num_cores);
  const std::vector<Instance> catalogue = plan_catalogue(flags.catalogue);
  std::string name;
  try {
    machine.cluster.ops = ops_factory(spec.machine.device);
    name = name_of_card(machine.cluster.ops);
  } catch (const Error& error) {
    fail(error.code(), "{}, or --machine NAME to plan for the card of an instance type", error.what());
  }
  if (const Card* card = find_card(catalogue, name)) {
    machine.cluster.rates = rates_of_card(card->figures, spec.placement.optimizer_is_on_host());
  } else {
    log_info("the catalogue has no {}: no times", name);
  }
  return machine;
}

// Has this machine's memory unless --memory says otherwise.
PlanMachine machine_of_file(const std::string& path) {
  const MachineRates rates = parse_rates(read_text_file(path), path);
  PlanMachine machine = machine_here(rates.num_cores);
  machine.cluster.rates = rates;
  machine.cluster.ops = planned_cpu_ops(rates.packs_weights);
  machine.cluster.network_gbps = rates.network_gbps;
  return machine;
}

// A run on a card uses one of its cards, with the host around it.
PlanMachine machine_of_instance(const PlanMachineFlags& flags, const RunSpec& spec) {
  const std::vector<Instance> instances = plan_catalogue(flags.catalogue);
  const auto found = std::ranges::find(instances, flags.machine, &Instance::name);
  if (found == instances.end()) {
    fail(ExitCode::kUsage,
         "--machine: expected here, an instance type of the catalogue such as {}, or a .json file of rates, "
         "found '{}'",
         instances.front().name, printable(flags.machine));
  }
  PlanMachine machine;
  machine.num_cores = found->figures.num_cores;
  machine.cluster.network_gbps = found->figures.network_gbps;
  machine.cluster.node_memory_bytes = found->usable_bytes();
  if (spec.machine.device == DeviceKind::kCpu) {
    machine.cluster.rates = rates_of_instance(found->figures);
    machine.cluster.ops = planned_cpu_ops(found->figures.amx);
    return machine;
  }
  if (found->num_cards == 0)
    fail(ExitCode::kUsage, "--machine: {} has no NVIDIA card, which device cuda needs", found->name);
  machine.cluster.rates = rates_of_card(found->card.figures, spec.placement.optimizer_is_on_host());
  machine.cluster.ops = planned_card_ops(found->card.name, found->card.usable_bytes());
  return machine;
}

PlanMachine machine_of_flag(const PlanMachineFlags& flags, const RunSpec& spec, int64_t threads_here) {
  const bool is_on_card = spec.machine.device != DeviceKind::kCpu;
  if (flags.name_this_machine())
    return is_on_card ? this_card(flags, spec, threads_here) : this_processor(flags, spec, threads_here);
  if (!flags.machine.ends_with(".json")) return machine_of_instance(flags, spec);
  if (is_on_card) {
    fail(ExitCode::kUsage,
         "--machine: a file of rates is of a processor: with --device {} give here or an instance type",
         spec.machine.device);
  }
  return machine_of_file(flags.machine);
}

}  // namespace

PlanMachine plan_machine(const PlanMachineFlags& flags, const RunSpec& spec, int64_t threads_here) {
  if (!flags.machine.empty() && (flags.tflops || flags.mfu)) {
    fail(ExitCode::kUsage, "--machine says how fast the machine is, and so does --{}: give one of the two",
         flags.tflops ? "tflops" : "mfu");
  }
  if (!flags.network.empty() && flags.network_gbps) {
    fail(ExitCode::kUsage, "--network says how fast the network is, and so does --network_gbps: give one");
  }
  PlanMachine machine = machine_of_flag(flags, spec, threads_here);
  if (flags.memory_bytes) {
    machine.cluster.node_memory_bytes = *flags.memory_bytes;
    machine.cluster.memory_is_of_this_machine = false;
  }
  if (flags.network_gbps) machine.cluster.network_gbps = *flags.network_gbps;
  if (!flags.network.empty()) {
    const MeasuredNetwork network = read_measured_network(flags.network);
    machine.cluster.network_gbps = network.gbit_per_s;
    if (machine.cluster.rates) {
      machine.cluster.rates->network_gbps = network.gbit_per_s;
      machine.cluster.rates->network_efficiency = 1;  // what the transport itself reached
      machine.cluster.rates->network_latency_s = network.latency_s;
    }
  }
  if (machine.cluster.rates) {
    double& rate = machine.cluster.rates->disk_gb_per_s;
    if (flags.disk_gb_per_s) {
      rate = *flags.disk_gb_per_s;
    } else if (flags.machine == "here" && !spec.placement.offload_dir.empty()) {
      if (const auto measured = try_disk_rate(spec.placement.offload_dir)) rate = measured->gb_per_s();
    }
  }
  if (flags.machine == "here" && spec.machine.device == DeviceKind::kCpu && machine.cluster.rates) {
    MeasuringOptions options;
    // The sample cuts parameters; others are priced by their bytes and products.
    if (is_elementwise(state_tensors_of(spec.optimizer))) options.optimizer = spec.optimizer.form;
    options.rates = *machine.cluster.rates;
    options.rates.network_gbps = machine.cluster.network_gbps;
    machine.op_costs = std::make_unique<MeasuredCosts>(options);
    machine.cluster.op_costs = machine.op_costs.get();
  }
  return machine;
}

}  // namespace tessera
