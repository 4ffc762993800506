#include <algorithm>
#include <array>
#include <cmath>

#include "arguments/arguments.h"
#include "arguments/config_file.h"
#include "arguments/state/lora_arguments.h"
#include "arguments/state/quantization_arguments.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/flag_parser.h"
#include "cli/run/plan_job.h"
#include "cli/run/plan_machine.h"
#include "cli/run/plan_search.h"
#include "cli/run/plan_simulation.h"
#include "cli/terminal/terminal.h"
#include "forecast/fit/ladder.h"
#include "forecast/forecast.h"
#include "formats/deepspeed/deepspeed_config.h"
#include "formats/huggingface/model_config.h"
#include "io/file.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

constexpr int64_t kMaxNodes = 4096;
constexpr int64_t kMaxLocalRanks = 256;
constexpr int64_t kAnyDisk = INT64_MAX / 2;  // where the disk is not known

// Flags that describe the machine: with one of them, and without --instances, its forecast is shown in
// detail.
constexpr std::array<const char*, 10> kMachineFlags = {"machine",      "memory",        "disk",   "network",
                                                       "network_gbps", "disk_gb_per_s", "tflops", "mfu",
                                                       "nnodes",       "nproc_per_node"};
// The ones among them that also narrow a search.
constexpr std::array<const char*, 2> kSharedFlags = {"nnodes", "nproc_per_node"};
constexpr std::array<const char*, 8> kSearchFlags = {"instances", "max_nodes", "sort", "top",
                                                     "max_hours", "max_price", "spot", "plot"};

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
    declare_training_flags(table, &args_);
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
    table->add("preset", &preset_, "Named shape to use instead of a model.").value_name = preset_value_name();
    limit_flag(
        table->add("vocab_size", &vocab_size_,
                   "Vocabulary size for presets that leave it open: 15m, 60m and 160m. Defaults to the "
                   "tokenizer's if there is one."),
        1, int64_t{1} << 31);
    limit_flag(table->add("tokens", &tokens_,
                          "Tokens of the whole job, instead of those of a dataset, which is then not read."),
               1);
    table->add("json", &json_, "Print a JSON object.");
    declare_machine_flags(table);
    declare_search_flags(table);
    simulation_.declare(table);
  }

  void complete_flags(FlagTable* table) override {
    for (size_t i = 0; i < num_training_flags_; ++i) {
      const Flag& flag = table->flags()[i];
      if (table->is_set(flag.name) && flag.get) given_.push_back(&flag);
    }
    if (!args_.sources.config.empty()) apply_config_file(args_.sources.config, table);
    apply_script_arguments(table, &args_);
  }
  bool reads_weights() const override { return false; }
  DataArguments* data_arguments() override { return tokens_ ? nullptr : &args_.data; }
  void on_hub_names(const std::string& flag, const std::vector<std::string>& names) override {
    args_.model.hub_names[flag] = names.at(0);
  }

  void run(FlagTable* table) override {
    set_log_level(args_.reporting.lowest_log_level());
    simulation_.check(*table);
    check_numbers();
    const bool is_on_device = args_.machine.device != DeviceKind::kCpu;
    if (is_on_device) check_device_flags(*table);
    if (simulation_.simulate()) return simulate(*table);
    const bool searches = (!is_on_device || is_any_set(*table, kSearchFlags)) && choose_search(*table);
    ModelConfig config = model_config(*table);
    config.lora = lora_config_of(args_);
    config.base_quantization = base_quantization_of(args_);
    if (is_on_device && !searches) return show_device(*table, config);
    if (disk_bytes_ || (args_.placement.fit && !is_any_set(*table, kSearchFlags)))
      return show_forms(*table, config);
    searches ? search(table, config) : show_machine(*table, config);
  }

 private:
  void declare_machine_flags(FlagTable* table) {
    table->begin_section("Plan: one kind of machine");
    machine_flags_.declare(table);
    limit_flag(table->add("nnodes", &num_nodes_, "Number of nodes. A search tries only this number."), 1,
               kMaxNodes);
    limit_flag(table->add("nproc_per_node", &local_world_size_,
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

  void declare_search_flags(FlagTable* table) {
    table->begin_section("Plan: which machines");
    table
        ->add("instances", &instances_,
              "Instance types to search: names or patterns such as 'c7i.*', or all. Without a flag that "
              "describes a machine, all is the default.")
        .value_name = "NAME...";
    table
        ->add("catalogue", &machine_flags_.catalogue,
              "Catalogue of instance types to use instead of the shipped one.")
        .value_name = "FILE";
    limit_flag(table->add("max_nodes", &max_nodes_, "Most nodes to try: 1, 2, 4, ... up to this."), 1,
               kMaxNodes);
    table->add_choice(
        "sort", &sort_, {"pareto", "price", "time"},
        "Show combinations that nothing beats in both time and price (pareto), or all by price or "
        "time, one for each instance type and number of nodes.");
    limit_flag(table->add("top", &top_, "Most combinations to show."), 1, 100'000);
    table->add("max_hours", &max_hours_, "Leave out what takes more hours for the whole job.");
    table->add("max_price", &max_price_, "Leave out what costs more USD for the whole job.");
    table->add("spot", &spot_, "Use the catalogue's typical spot prices.");
    table
        ->add("plot", &plot_,
              "Draw hours and price of all combinations, or what is simulated, into an SVG file.")
        .value_name = "FILE";
  }

  // Whether the catalogue is searched; otherwise one kind of machine is shown.
  static bool is_any_set(const FlagTable& table, const auto& names) {
    return std::ranges::any_of(names, [&](const char* name) { return table.is_set(name); });
  }

  bool choose_search(const FlagTable& table) const {
    const auto first_set = [&](const auto& names) -> std::string {
      const auto found = std::ranges::find_if(names, [&](const char* name) { return table.is_set(name); });
      return found == names.end() ? "" : *found;
    };
    const std::string of_search = first_set(kSearchFlags);
    const bool has_instances = table.is_set("instances");
    for (const char* name : kMachineFlags) {
      if (!table.is_set(name)) continue;
      const bool shared = std::ranges::find(kSharedFlags, std::string_view(name)) != kSharedFlags.end();
      if (shared && has_instances) continue;
      if (of_search.empty() && !machine_flags_.catalogue.empty() && machine_flags_.machine.empty()) {
        fail(ExitCode::kUsage, "--catalogue is for a search with --instances, or for --machine NAME");
      }
      if (of_search.empty()) return false;
      fail(ExitCode::kUsage, "--{} describes one kind of machine, --{} is for a search among many{}", name,
           of_search, shared ? ": add --instances all to search with this number" : ": give one of the two");
    }
    return true;
  }

  // A run on a card is one rank's, on one node.
  void check_device_flags(const FlagTable& table) const {
    for (const char* name :
         {"disk", "network", "network_gbps", "tflops", "mfu", "nnodes", "nproc_per_node", "simulate"}) {
      if (!table.is_set(name)) continue;
      fail(ExitCode::kUsage, "--{} is not available with --device {}, which plans for a single card", name,
           args_.machine.device);
    }
  }

  void check_numbers() const {
    const auto check_above_zero = [](const char* flag, const std::optional<double>& value) {
      if (!value || (std::isfinite(*value) && *value > 0)) return;
      fail(ExitCode::kUsage, "--{}: expected a finite number above 0, found {}", flag, *value);
    };
    check_above_zero("network_gbps", machine_flags_.network_gbps);
    check_above_zero("disk_gb_per_s", machine_flags_.disk_gb_per_s);
    check_above_zero("tflops", machine_flags_.tflops);
    check_above_zero("max_hours", max_hours_);
    check_above_zero("max_price", max_price_);
    if (machine_flags_.mfu && !(*machine_flags_.mfu > 0 && *machine_flags_.mfu <= 1)) {
      fail(ExitCode::kUsage, "--mfu: expected a number above 0 and at most 1, found {}", *machine_flags_.mfu);
    }
  }

  ModelConfig model_config(const FlagTable& table) const {
    if (args_.model.folder.empty() == preset_.empty()) {
      fail(ExitCode::kUsage, "give either --model DIR (or its config.json) or --preset NAME{}",
           preset_.empty() ? "" : ", not both");
    }
    if (preset_.empty()) return read_model_config(args_.model.folder);
    ModelConfig config = preset_config(preset_);
    if (config.vocab_size != 0) return config;
    config.vocab_size = args_.model.tokenizer.empty() || table.is_set("vocab_size")
                            ? vocab_size_
                            : Tokenizer::open(args_.model.tokenizer).vocab_size();
    return config;
  }

  PlanMachineFlags machine_flags() const {
    PlanMachineFlags flags = machine_flags_;
    if (!flags.memory_bytes) flags.memory_bytes = args_.placement.fit_memory_bytes;
    return flags;
  }
  int64_t threads_of_rank(const PlanMachine& machine) const {
    if (args_.machine.num_threads > 0) return args_.machine.num_threads;
    return std::max<int64_t>(1, machine.num_cores / local_world_size_);
  }
  ClusterShape cluster_of(const PlanMachine& machine, int64_t num_nodes) const {
    ClusterShape cluster = machine.cluster;
    cluster.num_nodes = static_cast<int>(num_nodes);
    cluster.local_world_size = static_cast<int>(local_world_size_);
    return cluster;
  }

  void simulate(const FlagTable& table) {
    for (const char* name : kSearchFlags) {
      if (!table.is_set(name) || name == std::string_view("plot")) continue;
      fail(ExitCode::kUsage, "--{} is for a search: a simulation is of one kind of machine, --machine NAME",
           name);
    }
    if (args_.sharding.context_parallel_size > local_world_size_) {
      fail(
          ExitCode::kUsage,
          "--simulate is of ranks that share rows within a node, and --context_parallel_size {} is more than "
          "its {}: without --simulate the plan has the step",
          args_.sharding.context_parallel_size, format_count(local_world_size_, "rank"));
    }
    const std::optional<int64_t> one_size = table.is_set("nnodes") ? std::optional(num_nodes_) : std::nullopt;
    const std::vector<int> sizes = simulation_.nodes(one_size);
    const SimulationOptions options = simulation_.options(std::ranges::max(sizes));
    ModelConfig config = model_config(table);
    config.lora = lora_config_of(args_);
    config.base_quantization = base_quantization_of(args_);
    std::optional<PlanMachine> machine;
    std::vector<SimulatedCluster> clusters;
    for (const int num_nodes : sizes) {
      RunSpec args = args_;
      const int64_t world_size = num_nodes * local_world_size_;
      if (!clusters.empty()) set_log_level(LogLevel::kError);  // it has been said
      resolve_run_spec(table, world_size, &args);
      if (!machine) machine = plan_machine(machine_flags(), args);
      if (!machine->cluster.rates) {
        fail(ExitCode::kUsage, "--simulate needs the speed of a machine: give --machine or --tflops");
      }
      clusters.push_back(simulate_cluster(args, config, cluster_of(*machine, num_nodes),
                                          threads_of_rank(*machine),
                                          job_size(args, config, world_size, tokens_), options));
    }
    if (!plot_.empty()) write_text_file(plot_, simulation_picture(clusters));
    write_output(json_ ? simulation_json(clusters) : simulation_text(clusters));
    flush_output();
    if (std::ranges::none_of(clusters, &std::string::empty, &SimulatedCluster::refusal)) {
      fail(ExitCode::kBadConfig, "{}", clusters.back().refusal);
    }
  }

  void show_machine(const FlagTable& table, const ModelConfig& config) {
    const int64_t world_size = num_nodes_ * local_world_size_;
    resolve_run_spec(table, world_size, &args_);
    const PlanMachine machine = plan_machine(machine_flags(), args_);
    const ClusterShape cluster = cluster_of(machine, num_nodes_);
    const int64_t num_threads = threads_of_rank(machine);
    const std::optional<JobSize> job = job_size(args_, config, world_size, tokens_);
    const RunForecast forecast = forecast_run(args_, config, cluster, num_threads, job);
    if (machine.prices) {
      for (const std::string& note : machine.prices->notes()) log_info("{}", note);
    }
    write_output(json_ ? forecast_json(forecast) : forecast_text(forecast));
    flush_output();
    if (forecast.refusal.empty()) return;
    const std::string advice =
        cluster.rates
            ? form_advice(ladder_request(args_, config, cluster, num_threads,
                                         job.value_or(assumed_job(args_, config, world_size)), kAnyDisk))
            : "";
    fail(ExitCode::kBadConfig, "{}{}", forecast.refusal, advice);
  }

  // The memory of a card and of its host.
  void show_device(const FlagTable& table, const ModelConfig& config) {
    resolve_run_spec(table, /*world_size=*/1, &args_);
    args_.reporting.measure_peak = false;  // the processor's
    const PlanMachine machine = plan_machine(machine_flags(), args_);
    show_forecast(forecast_run(args_, config, machine.cluster, threads_of_rank(machine),
                               job_size(args_, config, /*world_size=*/1, tokens_)));
  }

  void show_forecast(const RunForecast& forecast) const {
    write_output(json_ ? forecast_json(forecast) : forecast_text(forecast));
    flush_output();
    if (!forecast.refusal.empty()) fail(ExitCode::kBadConfig, "{}", forecast.refusal);
  }

  void show_forms(const FlagTable& table, const ModelConfig& config) {
    args_.placement.fit = true;
    const int64_t world_size = num_nodes_ * local_world_size_;
    resolve_run_spec(table, world_size, &args_);
    const PlanMachine machine = plan_machine(machine_flags(), args_);
    if (!machine.cluster.rates) {
      fail(ExitCode::kUsage, "--disk needs the speed of a machine: give --machine or --tflops");
    }
    const ClusterShape cluster = cluster_of(machine, num_nodes_);
    const JobSize job =
        job_size(args_, config, world_size, tokens_).value_or(assumed_job(args_, config, world_size));
    const std::optional<int64_t> disk = disk_bytes_ ? disk_bytes_ : args_.placement.fit_disk_bytes;
    const LadderRequest request = ladder_request(args_, config, cluster, threads_of_rank(machine), job,
                                                 disk ? *disk : free_disk_bytes(args_.placement.offload_dir));
    const Ladder ladder = plan_ladder(request);
    write_output(json_ ? ladder_json(ladder) : ladder_text(ladder));
    flush_output();
    if (!ladder.best) fail(ExitCode::kBadConfig, "{}", ladder_refusal(ladder, plan_lora_ladder(request)));
  }

  // A DeepSpeed file that states how often ranks accumulate is for one number of ranks.
  static int64_t ranks_of(const DeepSpeedConfig& file, const SearchOptions& options, int64_t ranks_of_team) {
    constexpr int64_t kMostRanks = 1 << 20;
    const std::optional<int64_t> micro_batch = file.train_micro_batch_size_per_gpu.value,
                                 all = file.train_batch_size.value;
    int64_t num_ranks = std::min(ranks_of_team, kMostRanks);
    if (micro_batch && all) {
      num_ranks *=
          std::clamp<int64_t>(*all / *micro_batch / *file.gradient_accumulation_steps.value, 1, kMostRanks);
    }
    // What was asked for is kept, and named where it contradicts the file.
    const int64_t given = int64_t{options.num_nodes.value_or(1)} * options.local_world_size.value_or(1);
    const bool is_given = options.num_nodes && options.local_world_size;
    return is_given || num_ranks % given != 0 ? given : num_ranks;
  }

  void search(FlagTable* table, const ModelConfig& config) {
    SearchOptions options = asked_options(*table, args_);
    options.max_nodes = static_cast<int>(max_nodes_);
    if (table->is_set("nnodes")) options.num_nodes = static_cast<int>(num_nodes_);
    if (table->is_set("nproc_per_node")) options.local_world_size = static_cast<int>(local_world_size_);
    set_log_level(LogLevel::kError);
    std::optional<DeepSpeedConfig> file;
    if (!args_.sources.deepspeed.empty()) file = read_deepspeed_config(args_.sources.deepspeed);
    // For the rows of a step: the combinations have other numbers of ranks, so that what is said about one
    // rank, or those that share its rows, would mislead.
    int64_t world_size = args_.sharding.context_parallel_size;
    if (file) world_size = file->sequence_parallel_size.value_or(world_size);
    const int64_t ranks_of_team = world_size;
    // One rank, unless others are asked for: their number matters here.
    const bool is_on_device = args_.machine.device != DeviceKind::kCpu;
    if (is_on_device || args_.placement.optimizer_in_backward ||
        args_.placement.param_device == OffloadDevice::kNvme) {
      options.num_nodes = options.num_nodes.value_or(1);
      options.local_world_size = options.local_world_size.value_or(1);
      world_size = int64_t{*options.num_nodes} * *options.local_world_size;
    }
    if (file && file->gradient_accumulation_steps.value) {
      options.world_size = world_size = ranks_of(*file, options, ranks_of_team);
    }
    resolve_run_spec(*table, world_size, &args_);
    set_log_level(args_.reporting.lowest_log_level());
    if (file) {  // it must say the same as the layout
      options.zero_stage = static_cast<int>(*args_.sharding.stage);
      options.micro_batch_rows = args_.batch.rows_per_device;
    }
    if (options.world_size) args_.batch.global_rows = global_batch_rows(args_.batch_options(world_size));

    SearchView view;
    view.order = sort_ == "price"  ? SearchOrder::kPrice
                 : sort_ == "time" ? SearchOrder::kTime
                                   : SearchOrder::kPareto;
    view.top = top_;
    view.max_hours = max_hours_;
    view.max_price = max_price_;
    view.spot = spot_;
    // To a run on processors a card would cost money and do nothing.
    const std::vector<Instance> whole = plan_catalogue(machine_flags_.catalogue);
    std::vector<Instance> catalogue = is_on_device ? with_cards(whole) : without_cards(whole);
    // Some are sold in blocks of days only.
    std::erase_if(catalogue, [](const Instance& instance) { return instance.usd_per_hour == 0; });
    const bool all = instances_.empty() || instances_ == std::vector<std::string>{"all"};
    const JobSize job = job_size(args_, config, 1, tokens_).value_or(assumed_job(args_, config, 1));
    const PlanSearch search(args_, config, job, all ? catalogue : select_instances(catalogue, instances_),
                            options, view);
    const std::string command = search.command(given_, preset_);
    if (!plot_.empty()) search.draw(plot_);
    write_output(json_ ? search.json(command) : search.text(command, preset_));
    flush_output();
    search.check_any_fits();
  }

  RunSpec args_;
  SimulationFlags simulation_;
  size_t num_training_flags_ = 0;
  std::vector<const Flag*> given_;  // of these, on the command line
  std::string preset_;
  int64_t vocab_size_ = 32000;
  std::optional<int64_t> tokens_;
  bool json_ = false;

  PlanMachineFlags machine_flags_;
  int64_t num_nodes_ = 1;
  int64_t local_world_size_ = 1;
  std::optional<int64_t> disk_bytes_;

  std::vector<std::string> instances_;
  int64_t max_nodes_ = 16;
  std::string sort_ = "pareto";
  int64_t top_ = 20;
  std::optional<double> max_hours_;
  std::optional<double> max_price_;
  bool spot_ = false;
  std::string plot_;
};

}  // namespace

std::unique_ptr<Command> make_plan_command() { return std::make_unique<PlanCommand>(); }

}  // namespace tessera
