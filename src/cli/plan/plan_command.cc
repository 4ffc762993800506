#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/flag_parser.h"
#include "cli/plan/plan_job.h"
#include "cli/plan/plan_machine.h"
#include "cli/plan/plan_search.h"
#include "cli/plan/plan_simulation.h"
#include "cli/terminal/terminal.h"
#include "forecast/fit/ladder.h"
#include "forecast/forecast.h"
#include "formats/huggingface/model_config.h"
#include "settings/config_file.h"
#include "settings/run_settings.h"

namespace tessera {
namespace {

constexpr int64_t kMaxLocalRanks = 256;
constexpr int64_t kAnyDisk = INT64_MAX / 2;  // where the disk is not known

class PlanCommand : public Command {
 public:
  std::string name() const override { return "plan"; }
  std::string summary() const override {
    return "Forecast what a training run will take, and on which machines";
  }
  std::string usage() const override {
    return "--model DIR | --preset NAME [--instances NAME...] [--dataset FILE...] [flags]";
  }
  std::string description() const override {
    return "Searches a catalogue of cloud instances for the combinations of instance, nodes, ranks, "
           "sharding, "
           "checkpointing and micro-batch on which the run fits, and shows those that nothing beats in both "
           "time and money: memory, step time, tokens per second, hours and price of the whole job. Every "
           "combination computes the same steps; the command that runs the best one is printed.\n"
           "With a flag that describes machines (--machine, --nnodes, --memory, ...) it forecasts the run on "
           "these in detail: the memory by kind, for a rank, a node and the whole job, the parts of a step's "
           "time, and for several nodes what crosses the network under each gather schedule.\n"
           "With --device cuda it plans for a single card: this machine's, with --machine that of an "
           "instance type, with --instances any of the catalogue's.\n"
           "With --simulate it simulates steps on clusters of that machine, with racks, slow nodes and "
           "failures.\n"
           "Needs only the model's shape, no weights. Takes the command line or the --config file of "
           "`tessera "
           "train` unchanged; flags that do not matter here have no effect and are not listed below. Exits "
           "with code 78 if nothing fits; the message then says what would.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera plan --preset llama3-8b --tokens 1e9 --max_length 2048 \\",
            "    --gradient_accumulation_steps 16 --plot plan.svg",
            "tessera plan run.yaml --instances 'c8i.*' r7i.48xlarge --max_hours 24 --spot",
            "tessera plan --preset llama3-8b --deepspeed cpu-ds.json --nnodes 4 \\",
            "    --memory 64GiB",
            "tessera plan --preset llama3-8b --max_length 2048 --memory 24GiB --disk 80GB",
            "tessera plan --preset llama3-8b --machine r7i.16xlarge --simulate \\",
            "    --nodes 4 64 --nodes_per_rack 16 --oversubscription 4 --mtbf_hours 1000",
            "tessera plan --model start --machine here --nproc_per_node 2 --json",
            "tessera plan --preset llama3-8b --device cuda --machine p5en.48xlarge"};
  }

  void declare_flags(FlagTable* table) override {
    declare_training_flags(table, &request_.args);
    num_training_flags_ = table->flags().size();
    table->list_only({"model",
                      "tokenizer",
                      "dataset",
                      "packing",
                      "max_length",
                      "num_train_epochs",
                      "max_steps",
                      "config",
                      "deepspeed",
                      "per_device_train_batch_size",
                      "gradient_accumulation_steps",
                      "global_batch_size",
                      "dtype",
                      "gradient_checkpointing",
                      "gradient_checkpointing_mode",
                      "merge_micro_batches",
                      "optim",
                      "optimizer_in_backward",
                      "clip_mode",
                      "offload_param_device",
                      "pack_weights",
                      "offload_optimizer_device",
                      "offload_dir",
                      "fit",
                      "fit_choice",
                      "fit_memory",
                      "fit_disk",
                      "finetuning_type",
                      "lora_rank",
                      "lora_target",
                      "device",
                      "num_threads",
                      "measure_peak",
                      "zero_stage",
                      "gather_schedule",
                      "grad_accum_dtype",
                      "zero_quantized_weights",
                      "zero_quantized_gradients"});
    table->begin_section("Plan");
    table->add("preset", &request_.preset, "Named shape to use instead of a model.").value_name =
        preset_value_name();
    limit_flag(
        table->add("vocab_size", &request_.vocab_size,
                   "Vocabulary size for presets that leave it open: 15m, 60m and 160m. Defaults to the "
                   "tokenizer's if there is one."),
        1, int64_t{1} << 31);
    limit_flag(table->add("tokens", &request_.tokens,
                          "Tokens of the whole job, instead of those of a dataset, which is then not read."),
               1);
    table->add("json", &request_.json, "Print a JSON object.");
    declare_machine_flags(table);
    search_.declare(table, &request_);
    simulation_.declare(table);
  }

  void complete_flags(FlagTable* table) override {
    for (size_t i = 0; i < num_training_flags_; ++i) {
      const Flag& flag = table->flags()[i];
      if (table->is_set(flag.name) && flag.get) request_.given.push_back(&flag);
    }
    if (!request_.args.sources.config.empty()) apply_config_file(request_.args.sources.config, table);
    apply_script_arguments(table, &request_.args);
  }
  bool reads_weights() const override { return false; }
  DataArguments* data_arguments() override { return request_.tokens ? nullptr : &request_.args.data; }
  void on_hub_names(const std::string& flag, const std::vector<std::string>& names) override {
    request_.args.model.hub_names[flag] = names.at(0);
  }

  void run(FlagTable* table) override {
    set_log_level(request_.args.reporting.lowest_log_level());
    simulation_.check(*table);
    check_numbers();
    const bool is_on_device = request_.args.machine.device != DeviceKind::kCpu;
    if (is_on_device) check_device_flags(*table);
    const std::string of_search = SearchFlags::first_given(*table);
    if (simulation_.is_wanted()) {
      if (!of_search.empty() && of_search != "plot") {
        fail(ExitCode::kUsage, "--{} is for a search: a simulation is of one kind of machine, --machine NAME",
             of_search);
      }
      return simulation_.simulate(request_, *table);
    }
    const bool searches = (!is_on_device || !of_search.empty()) && search_.is_wanted(request_, *table);
    const bool shows_forms = disk_bytes_ || (request_.args.placement.fit && of_search.empty());
    if (searches && !shows_forms) return search_.search(&request_, table);
    const ModelConfig config = request_.model_config(*table);
    if (is_on_device && !searches) return show_device(*table, config);
    shows_forms ? show_forms(*table, config) : show_machine(*table, config);
  }

 private:
  void declare_machine_flags(FlagTable* table) {
    table->begin_section("Plan: one kind of machine");
    request_.machine.declare(table);
    limit_flag(table->add("nnodes", &request_.num_nodes, "Number of nodes. A search tries only this number."),
               1, kMaxPlannedNodes);
    limit_flag(table->add("nproc_per_node", &request_.local_world_size,
                          "Ranks on each node. A search tries only this number."),
               1, kMaxLocalRanks);
    table->add_size(
        "disk", &disk_bytes_, "80GB",
        "Room on the disk of offload_dir: shows the forms of the run that fit into memory and disk "
        "(optimizer state in fewer bits or on the disk, weights on the disk or, beside adapters, in fewer "
        "bits, update in the backward pass, recomputation), with what each costs, and the flags of the best. "
        "What is "
        "given stays as it is. --fit does the same with what is free on this machine's disk.");
  }

  // A run on a card is one rank's, on one node.
  void check_device_flags(const FlagTable& table) const {
    for (const char* name :
         {"disk", "network", "network_gbps", "tflops", "mfu", "nnodes", "nproc_per_node", "simulate"}) {
      if (!table.is_set(name)) continue;
      fail(ExitCode::kUsage, "--{} is not available with --device {}, which plans for a single card", name,
           request_.args.machine.device);
    }
  }

  void check_numbers() const {
    const auto check_above_zero = [](const char* flag, const std::optional<double>& value) {
      if (!value || (std::isfinite(*value) && *value > 0)) return;
      fail(ExitCode::kUsage, "--{}: expected a finite number above 0, found {}", flag, *value);
    };
    check_above_zero("network_gbps", request_.machine.network_gbps);
    check_above_zero("disk_gb_per_s", request_.machine.disk_gb_per_s);
    check_above_zero("tflops", request_.machine.tflops);
    check_above_zero("max_hours", search_.max_hours());
    check_above_zero("max_price", search_.max_price());
    if (request_.machine.mfu && !(*request_.machine.mfu > 0 && *request_.machine.mfu <= 1)) {
      fail(ExitCode::kUsage, "--mfu: expected a number above 0 and at most 1, found {}",
           *request_.machine.mfu);
    }
  }

  void show_machine(const FlagTable& table, const ModelConfig& config) {
    const int64_t world_size = request_.num_nodes * request_.local_world_size;
    resolve_run_spec(table, world_size, &request_.args);
    const PlanMachine machine = request_.machine_for(request_.args);
    const ClusterShape cluster = request_.cluster_of(machine, request_.num_nodes);
    const int64_t num_threads = request_.threads_of_rank(machine);
    const std::optional<JobSize> job = job_size(request_.args, config, world_size, request_.tokens);
    const RunForecast forecast = forecast_run(request_.args, config, cluster, num_threads, job);
    if (machine.prices) {
      for (const std::string& note : machine.prices->notes()) log_info("{}", note);
    }
    write_output(request_.json ? forecast_json(forecast) : forecast_text(forecast));
    flush_output();
    if (forecast.refusal.empty()) return;
    const std::string advice =
        cluster.rates ? form_advice(ladder_request(
                            request_.args, config, cluster, num_threads,
                            job.value_or(assumed_job(request_.args, config, world_size)), kAnyDisk))
                      : "";
    fail(ExitCode::kBadConfig, "{}{}", forecast.refusal, advice);
  }

  // The memory of a card and of its host.
  void show_device(const FlagTable& table, const ModelConfig& config) {
    resolve_run_spec(table, /*world_size=*/1, &request_.args);
    request_.args.reporting.measure_peak = false;  // the processor's
    const PlanMachine machine = request_.machine_for(request_.args);
    show_forecast(forecast_run(request_.args, config, machine.cluster, request_.threads_of_rank(machine),
                               job_size(request_.args, config, /*world_size=*/1, request_.tokens)));
  }

  void show_forecast(const RunForecast& forecast) const {
    write_output(request_.json ? forecast_json(forecast) : forecast_text(forecast));
    flush_output();
    if (!forecast.refusal.empty()) fail(ExitCode::kBadConfig, "{}", forecast.refusal);
  }

  void show_forms(const FlagTable& table, const ModelConfig& config) {
    request_.args.placement.fit = true;
    const int64_t world_size = request_.num_nodes * request_.local_world_size;
    resolve_run_spec(table, world_size, &request_.args);
    const PlanMachine machine = request_.machine_for(request_.args);
    if (!machine.cluster.rates) {
      fail(ExitCode::kUsage, "--disk needs the speed of a machine: give --machine or --tflops");
    }
    const ClusterShape cluster = request_.cluster_of(machine, request_.num_nodes);
    const JobSize job = job_size(request_.args, config, world_size, request_.tokens)
                            .value_or(assumed_job(request_.args, config, world_size));
    const std::optional<int64_t> disk = disk_bytes_ ? disk_bytes_ : request_.args.placement.fit_disk_bytes;
    const LadderRequest request =
        ladder_request(request_.args, config, cluster, request_.threads_of_rank(machine), job,
                       disk ? *disk : free_disk_bytes(request_.args.placement.offload_dir));
    const Ladder ladder = plan_ladder(request);
    write_output(request_.json ? ladder_json(ladder) : ladder_text(ladder));
    flush_output();
    if (!ladder.best) fail(ExitCode::kBadConfig, "{}", ladder_refusal(ladder, plan_lora_ladder(request)));
  }

  PlanRequest request_;
  SearchFlags search_;
  SimulationFlags simulation_;
  size_t num_training_flags_ = 0;
  std::optional<int64_t> disk_bytes_;
};

}  // namespace

std::unique_ptr<Command> make_plan_command() { return std::make_unique<PlanCommand>(); }

}  // namespace tessera
