#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/plan/plan_search.h"
#include "cli/terminal/terminal.h"
#include "forecast/fit/fit_options.h"
#include "forecast/forecast.h"
#include "settings/run_settings.h"
#include "train/setup/job_size.h"

namespace tessera {
namespace {

constexpr int64_t kAnyDisk = INT64_MAX / 2;  // where the disk is not known

class PlanCommand : public PlanningCommand {
 public:
  std::string name() const override { return "plan"; }

  void declare_flags(FlagTable* table) override {
    declare_run(table);
    declare_machine(table);
    declare_ranks(table);
    declare_size(table, "disk", &disk_bytes_, "80GB");
  }

  void run(FlagTable* table) override {
    set_log_level(request_.given.reporting.lowest_log_level());
    const bool shows_forms = disk_bytes_ || request_.given.placement.fit;
    if (!describes_machine(*table) && !request_.is_on_device() && !shows_forms) {
      return search_machines(PlanSearch(), request_, *table);
    }
    request_.check_device_flags(*table);
    const ModelConfig config = request_.model_config(*table);
    request_.is_on_device() || !shows_forms ? show_machine(*table, config) : show_forms(*table, config);
  }

 private:
  // Error(kUsage) for a catalogue that has no use.
  bool describes_machine(const FlagTable& table) const {
    constexpr const char* kMachineFlags[] = {"machine", "memory", "network", "network_gbps",  "disk_gb_per_s",
                                             "tflops",  "mfu",    "nnodes",  "nproc_per_node"};
    const bool any = std::ranges::any_of(kMachineFlags, [&](const char* name) { return table.is_set(name); });
    if (any && !request_.machine.catalogue.empty() && request_.machine.machine.empty()) {
      fail(ExitCode::kUsage, "--catalogue is for tessera plan search, or for --machine NAME");
    }
    return any;
  }

  void show_machine(const FlagTable& table, const ModelConfig& config) {
    const int64_t world_size = request_.world_size();
    RunSettings given = request_.given;
    if (request_.is_on_device()) given.reporting.measure_peak = false;  // the processor's
    const RunSpec spec = read_run_spec(table, given, world_size);
    const PlanMachine machine = request_.machine_for(spec);
    const ClusterShape cluster = request_.cluster_of(machine, request_.num_nodes);
    const int64_t num_threads = request_.threads_of_rank(machine);
    const std::optional<JobSize> job = request_.job(spec, config, world_size);
    const RunForecast forecast = forecast_run(spec, config, cluster, num_threads, job);
    if (machine.op_costs) {
      for (const std::string& note : machine.op_costs->notes()) log_info("{}", note);
    }
    write_output(request_.json ? forecast_json(forecast) : forecast_text(forecast));
    flush_output();
    if (forecast.refusal.empty()) return;
    const std::string advice =
        cluster.rates && !request_.is_on_device()
            ? fit_advice(fit_request(spec, config, cluster, num_threads,
                                     job.value_or(assumed_job(spec, config, world_size)), kAnyDisk))
            : "";
    fail(ExitCode::kBadConfig, "{}{}", forecast.refusal, advice);
  }

  void show_forms(const FlagTable& table, const ModelConfig& config) {
    RunSettings given = request_.given;
    given.placement.fit = true;
    const int64_t world_size = request_.world_size();
    const RunSpec spec = read_run_spec(table, given, world_size);
    const PlanMachine machine = request_.machine_for(spec);
    if (!machine.cluster.rates) {
      fail(ExitCode::kUsage, "--disk needs the speed of a machine: give --machine or --tflops");
    }
    const ClusterShape cluster = request_.cluster_of(machine, request_.num_nodes);
    const JobSize job = request_.job_or_assumed(spec, config, world_size);
    const std::optional<int64_t> disk = disk_bytes_ ? disk_bytes_ : spec.placement.fit_disk_bytes;
    const FitRequest request = fit_request(spec, config, cluster, request_.threads_of_rank(machine), job,
                                           disk ? *disk : free_disk_bytes(spec.placement.offload_dir));
    const FitOptions options = fit_options(request);
    write_output(request_.json ? fit_json(options) : fit_text(options));
    flush_output();
    if (!options.best) fail(ExitCode::kBadConfig, "{}", fit_refusal(options, lora_fit_options(request)));
  }

  std::optional<int64_t> disk_bytes_;
};

}  // namespace

std::unique_ptr<Command> make_plan_command() { return std::make_unique<PlanCommand>(); }

}  // namespace tessera
