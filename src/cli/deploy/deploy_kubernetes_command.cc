#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/deploy/deploy_command.h"
#include "cli/deploy/pod_arguments.h"
#include "cli/hub_names.h"
#include "cli/plan/plan_machine.h"
#include "cli/plan/plan_search.h"
#include "cluster/manifests/allocatable.h"
#include "cluster/manifests/job_plan.h"
#include "cluster/manifests/names.h"
#include "forecast/text/plan_text.h"
#include "formats/huggingface/model_config.h"
#include "settings/derived.h"
#include "settings/resolve.h"
#include "settings/run_settings.h"

namespace tessera {
namespace {

constexpr int64_t kPresetVocabSize = 32000;  // of presets that leave it open

class DeployKubernetesCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy kubernetes"; }

  void declare_flags(FlagTable* table) override {
    declare_training_flags(table, &given_);
    num_training_flags_ = table->flags().size();
    list_only(table,
              "model dataset config max_length packing global_batch_size per_device_train_batch_size "
              "gradient_checkpointing gradient_checkpointing_mode zero_stage gather_schedule "
              "num_train_epochs max_steps device output_dir");
    table->begin_section("Job");
    declare(table, "name", &job_.name);
    declare(table, "trainer", &job_.kind, kJobKinds);
    declare(table, "queue", &job_.queue);
    declare(table, "topology", &job_.topology);
    declare(table, "model_config", &model_config_);
    declare(table, "rendezvous_secret", &job_.rendezvous_secret);
    declare(table, "monitoring_namespace", &job_.monitoring_namespace);
    declare_pod_flags(table);
    declare_node_flags(table);
    table->begin_section("Place");
    declare_common_flags(table);
  }

  void complete_flags(FlagTable* table) override {
    DeployCommand::complete_flags(table);
    read_setting_files(table, &given_);
    for (size_t i = 0; i < num_training_flags_; ++i) {
      const Flag& flag = table->flags()[i];
      if (table->is_set(flag.name) && flag.get) given_flags_.push_back(&flag);
    }
  }

  void run(FlagTable* table) override {
    set_log_level(given_.reporting.lowest_log_level());
    JobSettings job = job_settings();
    check_pod_paths(given_flags_);
    if (given_.sources.deepspeed.empty()) check_offload(given_);
    check_form(given_);
    check_resume(given_);
    check_metrics_port(*table, &job);
    check_runtime_flags(*table, job);
    check_fabric(given_, job.pod.image, table->is_set("image"), job_.num_efa);
    if (given_.data.dataset.empty())
      fail(ExitCode::kUsage, "--dataset is missing: a job needs rows to train on");
    const ModelConfig config = model_config();
    const std::vector<Instance> catalogue = plan_catalogue(catalogue_);
    Instance instance = chosen_instance(catalogue);
    if (network_gbps_) instance.facts.network_gbps = *network_gbps_;
    job.instance = instance.name;
    job.pod.needs_amx = instance.facts.amx && !is_on_card();
    check_pool(instance);
    job.local_world_size = static_cast<int>(
        local_world_size_.value_or(is_on_card() ? 1 : std::max<int64_t>(1, instance.num_numa_nodes)));
    take_devices(instance, &job);
    job.size = pod_size(instance, job.local_world_size);

    const JobPlan plan = make_plan(table, config, instance, job);
    job.grace = grace(*table, plan);
    job.pod.pod_grace_s = job.grace.pod_s;
    job.train_arguments = pod_arguments(given_flags_, plan.layout, plan.step_rows, job.name);
    job.about = about(plan, instance, job);
    write_manifests(job_documents(templates(), job, random_token()));
  }

 private:
  bool is_on_card() const { return given_.machine.device == DeviceKind::kCuda; }

  void check_pool(const Instance& instance) const {
    if (instance.name.empty() || in_node_pool(instance, is_on_card())) return;
    if (instance.num_cards > 0) {
      log_warning("{} has {}, which only a run with --device cuda uses", instance.name,
                  format_count(instance.num_cards, "NVIDIA card"));
    }
    log_warning(
        "the NodePool of `tessera deploy cluster` starts no {}: it has types with AMX, 8xlarge to "
        "48xlarge, not bare metal",
        instance.name);
  }

  // One card for each rank, and the EFA interfaces that were asked for.
  void take_devices(const Instance& instance, JobSettings* job) const {
    if (is_on_card()) {
      check_number_of_cards(instance, *job);
      check_device(given_, int64_t{job->num_nodes} * job->local_world_size);
      job->num_cards = job->local_world_size;
      if (instance.num_cards > job->num_cards) {
        log_warning("{} has {}, of which a node uses {}: a type with fewer costs less", instance.name,
                    format_count(instance.num_cards, "card"), job->num_cards);
      }
    }
    if (job_.num_efa > 0 && !instance.name.empty() && job_.num_efa > instance.num_efa_cards) {
      fail(ExitCode::kUsage, "--efa: {} has {}, found {}", instance.name,
           format_count(instance.num_efa_cards, "EFA interface"), job_.num_efa);
    }
  }

  // Ranks may share a card, but a pod has what its node has.
  static void check_number_of_cards(const Instance& instance, const JobSettings& job) {
    if (job.local_world_size <= instance.num_cards) return;
    fail(ExitCode::kUsage, "--nproc_per_node: {} has {}, one for each rank, found {} ranks", instance.name,
         format_count(instance.num_cards, "NVIDIA card"), job.local_world_size);
  }

  void declare_node_flags(FlagTable* table) {
    table->begin_section("Nodes");
    declare(table, "instance", &instance_);
    declare(table, "nodes", &num_nodes_);
    declare(table, "nproc_per_node", &local_world_size_);
    declare(table, "capacity", &job_.capacity, {"any", "spot", "on-demand"});
    declare(table, "zone", &job_.zone);
    declare(table, "cpus", &cpus_);
    declare_size(table, "memory", &memory_bytes_, "480GiB");
    declare(table, "max_pods", &max_pods_);
    declare(table, "storage_mb_per_s", &storage_mb_per_s_);
    declare(table, "efa", &job_.num_efa);
    declare(table, "network_gbps", &network_gbps_);
    declare(table, "catalogue", &catalogue_);
  }

  JobSettings job_settings() const {
    JobSettings job = job_;
    job.pod = pod_settings(is_on_card());
    job.num_nodes = static_cast<int>(num_nodes_);
    const std::string suffix = pod_suffix(job.kind, job.num_nodes);
    job.name = job_.name.empty() ? label_of(given_.model.folder, kMaxLabelLength - suffix.size()) : job_.name;
    if (job_.name.empty() && (job.name.empty() || (job.name[0] >= '0' && job.name[0] <= '9')))
      job.name = "train";
    check_label("name", job.name, suffix);
    // The name of a Service: RFC 1035.
    if (job.name[0] >= '0' && job.name[0] <= '9') {
      fail(ExitCode::kUsage, "--name: expected a name that begins with a letter, found '{}'", job.name);
    }
    if (job_.topology && job_.queue.empty()) fail(ExitCode::kUsage, "--topology is for jobs of a --queue");
    return job;
  }

  // Probes and Prometheus have to reach the server.
  void check_metrics_port(const FlagTable& table, JobSettings* job) const {
    if (table.is_set("metrics_host")) {
      fail(ExitCode::kUsage, "--metrics_host: pods serve on all of their addresses; leave it out");
    }
    if (!given_.reporting.metrics_port || *given_.reporting.metrics_port == job->pod.port) return;
    if (is_trainer(job->kind) || *given_.reporting.metrics_port == 0) {
      fail(ExitCode::kUsage, "--metrics_port: expected {}, the port of the pods of a {}, found {}",
           job->pod.port, is_trainer(job->kind) ? "ClusterTrainingRuntime" : "job",
           *given_.reporting.metrics_port);
    }
    job->pod.port = *given_.reporting.metrics_port;
  }

  // What a TrainJob cannot change of its runtime's pods, and what other jobs do not have.
  static void check_runtime_flags(const FlagTable& table, const JobSettings& job) {
    if (!is_trainer(job.kind)) {
      if (table.is_set("runtime")) fail(ExitCode::kUsage, "--runtime: only a TrainJob has one; leave it out");
      return;
    }
    for (const char* flag : {"node_check", "hf_token_secret"}) {
      if (!table.is_set(flag)) continue;
      fail(ExitCode::kUsage,
           "--{}: the pods of a TrainJob have that of their runtime {}: give it to `tessera deploy runtime`",
           flag, job.pod.runtime);
    }
    if (table.is_set("priority_class") && job.queue.empty()) {
      fail(ExitCode::kUsage,
           "--priority_class: without --queue the pods of a TrainJob have only that of their runtime {}: "
           "give it to `tessera deploy runtime`",
           job.pod.runtime);
    }
  }

  ModelConfig model_config() const {
    if (given_.model.folder.empty())
      fail(ExitCode::kUsage, "--model is missing: a job needs a model to start from");
    const std::string& source = model_config_.empty() ? given_.model.folder : model_config_;
    const std::vector<std::string> presets = preset_names();
    if (!model_config_.empty() && std::ranges::find(presets, source) != presets.end()) {
      ModelConfig config = preset_config(source);
      if (config.vocab_size == 0) config.vocab_size = kPresetVocabSize;
      return config;
    }
    std::error_code error;
    if (model_config_.empty() && source.starts_with('/') && !std::filesystem::exists(source, error)) {
      fail(ExitCode::kUsage,
           "--model: {} is a path in the pods: say what to plan with by --model_config: a local config.json "
           "or its folder, a name on the Hub, or a preset ({})",
           printable(source), fmt::join(presets, ", "));
    }
    return read_model_config(local_model(source, ModelFiles::kNoWeights));
  }

  Instance chosen_instance(const std::vector<Instance>& catalogue) const {
    if (!instance_.empty()) {
      const Instance& instance = find_instance(catalogue, instance_);
      if (is_on_card()) check_cards(catalogue, instance);
      return instance;
    }
    if (is_on_card()) {
      fail(ExitCode::kUsage,
           "--instance is missing: with device cuda it says which card the plan counts with; --catalogue "
           "FILE adds "
           "types of your own");
    }
    if (cpus_ && memory_bytes_) return unknown_instance(catalogue, *cpus_, *memory_bytes_);
    fail(ExitCode::kUsage,
         "--instance is missing: give the type of the nodes, or with --cpus and --memory what a pod has on "
         "nodes of any other type");
  }

  PodSize pod_size(const Instance& instance, int ranks) const {
    PodSize size{cpus_.value_or(0), memory_bytes_.value_or(0) >> 20 << 20};
    if (memory_bytes_ && size.memory_bytes == 0) {
      fail(ExitCode::kUsage, "--memory: expected at least 1 MiB, found {}", size_text(*memory_bytes_));
    }
    if (instance.name.empty()) return size;
    const int64_t threads_per_core = std::max<int64_t>(1, instance.num_vcpus / instance.facts.num_cores);
    const Allocatable most = allocatable_of(instance, max_pods_);
    const Allocatable even = allocatable_of(instance, max_pods_, ranks * threads_per_core);
    if (size.cpus == 0) size.cpus = even.pod_cpus > 0 ? even.pod_cpus : most.pod_cpus;
    if (size.memory_bytes == 0) size.memory_bytes = most.pod_memory_bytes;
    if (size.cpus > most.pod_cpus || size.memory_bytes > most.pod_memory_bytes) {
      fail(ExitCode::kBadConfig,
           "--{}: a node of {} leaves a pod {} CPUs and {}: the rest is reserved for Kubernetes and daemon "
           "sets",
           size.cpus > most.pod_cpus ? "cpus" : "memory", instance.name, most.pod_cpus,
           format_bytes(most.pod_memory_bytes));
    }
    return size;
  }

  // The configuration of an adapter on the pods' volume is not here.
  static void leave_out_missing_adapter(RunSpec* spec) {
    std::error_code error;
    if (spec->lora.adapter.empty() || std::filesystem::exists(spec->lora.adapter, error)) return;
    log_warning(
        "--adapter_name_or_path: {} is not on this machine: planned with adapters of rank {} on all modules",
        spec->lora.adapter, spec->lora.rank);
    spec->lora.adapter.clear();
  }

  JobPlan make_plan(FlagTable* table, const ModelConfig& config, const Instance& instance,
                    const JobSettings& job) {
    JobPlanRequest request;
    request.options = asked_options(*table, given_);
    request.options.num_nodes = job.num_nodes;
    request.options.local_world_size = job.local_world_size;
    const int64_t world_size = int64_t{job.num_nodes} * job.local_world_size;
    RunSpec spec = read_run_spec(*table, given_, world_size);
    if (!spec.sources.deepspeed.empty()) check_offload(spec);
    check_monitors(spec);
    if (spec.sources.given.contains("zero_stage"))
      request.options.zero_stage = static_cast<int>(spec.sharding.stage.value());
    // With --global_batch_size this flag is an upper limit.
    if (spec.sources.given.contains("per_device_train_batch_size")) {
      const int64_t rank_rows =
          global_batch_rows(spec.batch_options(world_size)) / num_row_ranks(spec, world_size);
      request.options.micro_batch_rows =
          std::clamp<int64_t>(rank_rows, 1, std::max<int64_t>(1, spec.batch.rows_per_device));
    }
    leave_out_missing_adapter(&spec);
    request.spec = &spec;
    request.config = &config;
    request.instance = &instance;
    request.pod = job.size;
    return plan_job(request);
  }

  GracePeriods grace(const FlagTable& table, const JobPlan& plan) const {
    const double step_s = plan.forecast.time ? plan.forecast.time->step_s() : 0;
    const bool is_spot = job_.capacity != "on-demand" && !instance_.empty();
    GracePeriods grace =
        grace_periods(plan.forecast.disk.checkpoint_bytes, storage_mb_per_s_ * 1e6, step_s, is_spot);
    if (table.is_set("grace_period_s")) grace = with_grace_period(grace, given_.grace_period_s, is_spot);
    if (!is_spot && !instance_.empty() && grace.pod_s > kSpotGraceSeconds) {
      log_warning(
          "the pods may take {} s after SIGTERM; the NodePool of `tessera deploy cluster`, which is made for "
          "spot nodes, removes a node 120 s after it is told to go (terminationGracePeriod): raise it, or "
          "use other nodes",
          grace.pod_s);
    }
    if (grace.is_short) {
      log_warning(
          "a step and a checkpoint of {} take {} s, more than four fifths of the {} s after SIGTERM: an "
          "evicted run resumes from an earlier checkpoint; save often (--save_steps), or give the speed of "
          "faster storage by --storage_mb_per_s",
          format_bytes(plan.forecast.disk.checkpoint_bytes), std::llround(grace.needed_s), grace.run_s);
    }
    return grace;
  }

  std::vector<std::string> about(const JobPlan& plan, const Instance& instance,
                                 const JobSettings& job) const {
    const RunForecast& forecast = plan.forecast;
    // Whole ones, because a part is measured in this process: the same request gives the same manifest.
    const int64_t planned_gib = (forecast.memory.node_bytes() >> 30) + 1;
    const bool has_adapters = forecast.num_frozen > 0;
    const int64_t num_parameters = has_adapters ? forecast.num_frozen : forecast.num_parameters;
    std::vector<std::string> lines = {
        fmt::format(
            "{} with {:.2f} billion parameters{} on {}{}, {} each.", given_.model.folder,
            static_cast<double>(num_parameters) / 1e9,
            has_adapters ? fmt::format(" and {} in adapters", format_count(forecast.num_parameters)) : "",
            format_count(job.num_nodes, "node"), instance.name.empty() ? "" : " of " + instance.name,
            format_count(job.local_world_size, "rank")),
        fmt::format("Memory of a node: {} GiB planned, {} in the pod; the rest holds files and copies of "
                    "checkpoints.",
                    planned_gib, format_bytes(job.size.memory_bytes)),
        fmt::format(
            "A checkpoint has {} and takes {} s at {:g} MB/s; a run has {} s after SIGTERM.",
            format_bytes(forecast.disk.checkpoint_bytes),
            std::llround(static_cast<double>(forecast.disk.checkpoint_bytes) / (storage_mb_per_s_ * 1e6)),
            storage_mb_per_s_, job.grace.run_s)};
    if (is_on_card()) {
      lines.insert(lines.begin() + 2,
                   fmt::format("Memory of the card, an {}: {} planned, {} free.", instance.card.name,
                               format_bytes(forecast.memory.device_bytes()),
                               format_bytes(instance.card.usable_bytes())));
    }
    if (forecast.time) {
      lines.push_back(fmt::format(
          "A step of {} takes about {} s{}.", format_count(plan.step_rows, "row"),
          three_digits(forecast.time->step_s()),
          job.num_nodes > 1 && instance.name.empty()
              ? fmt::format(", with {:g} Gbit/s between nodes (--network_gbps)", instance.facts.network_gbps)
              : ""));
    }
    if (plan.usd_per_hour > 0) {
      lines.push_back(fmt::format(
          "The nodes cost about {:.2f} USD an hour on demand, {:.2f} as spot ({}, {}).", plan.usd_per_hour,
          plan.usd_per_hour * instance.spot_share, instance.region, instance.date));
    }
    return lines;
  }

  JobSettings job_;  // what flags say of it
  RunSpec given_;
  size_t num_training_flags_ = 0;
  std::vector<const Flag*> given_flags_;  // of these
  std::string model_config_;
  std::string instance_;
  int64_t num_nodes_ = 1;
  std::optional<int64_t> local_world_size_;
  std::optional<int64_t> cpus_;
  std::optional<int64_t> memory_bytes_;
  std::optional<int64_t> max_pods_;
  double storage_mb_per_s_ = 500;
  std::optional<double> network_gbps_;
  std::string catalogue_;
};

}  // namespace

std::unique_ptr<Command> make_deploy_kubernetes_command() {
  return std::make_unique<DeployKubernetesCommand>();
}

}  // namespace tessera
