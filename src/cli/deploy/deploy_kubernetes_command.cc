#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/deploy/deploy_command.h"
#include "cli/hub_names.h"
#include "cluster/deploy/job_nodes.h"
#include "cluster/deploy/planned_job.h"
#include "cluster/deploy/pod_arguments.h"
#include "forecast/instances/layout_flags.h"
#include "formats/huggingface/model_config.h"
#include "hub/repo_name.h"
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
    given_flags_ = given_of_first(*table, num_training_flags_);
  }

  void run(FlagTable* table) override {
    set_log_level(given_.reporting.lowest_log_level());
    JobSettings job = job_settings();
    check_pod_paths(given_flags_);
    if (given_.sources.deepspeed.empty()) check_offload(given_.placement);
    check_fit(given_.placement);
    check_resume(given_.resume);
    check_metrics_port(*table, &job);
    check_runtime_flags(*table, job);
    check_fabric(given_.network, job.pod.image, table->is_set("image"), job_.num_efa);
    if (given_.data.dataset.empty())
      fail(ExitCode::kUsage, "--dataset is missing: a job needs rows to train on");
    const ModelConfig config = model_config();
    JobNodes nodes = nodes_;
    nodes.on_card = is_on_card();
    const Instance instance = node_type(nodes, plan_catalogue(catalogue_));
    place_job(nodes, instance, &job);
    const int64_t world_size = int64_t{job.num_nodes} * job.local_world_size;
    if (is_on_card()) check_device(given_, world_size);
    JobRun run(read_run_spec(*table, given_, world_size));
    run.config = config;
    run.instance = instance;
    run.options = asked_options(given_.sharding, given_.placement, table->is_set("gradient_checkpointing"));
    if (!run.spec.sources.deepspeed.empty()) check_offload(run.spec.placement);
    check_monitors(run.spec.reporting);
    run.storage_mb_per_s = storage_mb_per_s_;
    run.may_be_spot = job.capacity == "any" || job.capacity == "spot";
    if (table->is_set("grace_period_s")) run.grace_period_s = given_.grace_period_s;
    run.given_flags = given_flags_;
    complete_job(run, &job);
    write_manifests(job_documents(templates(), job, random_token()));
  }

 private:
  bool is_on_card() const { return given_.machine.device == DeviceKind::kCuda; }

  void declare_node_flags(FlagTable* table) {
    table->begin_section("Nodes");
    declare(table, "instance", &nodes_.instance);
    declare(table, "nodes", &num_nodes_);
    declare(table, "nproc_per_node", &nodes_.local_world_size);
    declare(table, "capacity", &job_.capacity, {"any", "spot", "on-demand", "reserved"});
    declare(table, "zone", &job_.zone);
    declare(table, "cpus", &nodes_.cpus);
    declare_size(table, "memory", &nodes_.memory_bytes, "480GiB");
    declare(table, "max_pods", &nodes_.max_pods);
    declare(table, "storage_mb_per_s", &storage_mb_per_s_);
    declare(table, "efa", &job_.num_efa);
    declare(table, "network_gbps", &nodes_.network_gbps);
    declare(table, "catalogue", &catalogue_);
  }

  JobSettings job_settings() const {
    JobSettings job = job_;
    job.pod = pod_settings(is_on_card());
    job.num_nodes = static_cast<int>(num_nodes_);
    job.name = job_name(job_.name, given_.model.folder, job.kind, job.num_nodes);
    if (job_.topology && job_.queue.empty()) fail(ExitCode::kUsage, "--topology is for jobs of a --queue");
    return job;
  }

  // Probes and Prometheus have to reach the server.
  void check_metrics_port(const FlagTable& table, JobSettings* job) const {
    if (table.is_set("metrics_host")) {
      fail(ExitCode::kUsage, "--metrics_host: pods serve on all of their addresses; leave it out");
    }
    if (!given_.reporting.metrics_port || *given_.reporting.metrics_port == job->pod.port) return;
    if (shares_runtime(*job) || *given_.reporting.metrics_port == 0) {
      fail(ExitCode::kUsage, "--metrics_port: expected {}, the port of the pods of a {}, found {}",
           job->pod.port, shares_runtime(*job) ? "ClusterTrainingRuntime" : "job",
           *given_.reporting.metrics_port);
    }
    job->pod.port = *given_.reporting.metrics_port;
  }

  static bool shares_runtime(const JobSettings& job) {
    return is_trainer(job.kind) && !has_own_runtime(job.kind, job.queue);
  }

  // Refuses flags that a TrainJob cannot change in its runtime's pods, and flags that other jobs lack.
  static void check_runtime_flags(const FlagTable& table, const JobSettings& job) {
    if (job.kind == JobKind::kPyTorchJob && job.pod.node_check) {
      fail(ExitCode::kUsage,
           "--node_check: kubelet would repeat the check of a PyTorchJob's pod on the same node for ever");
    }
    if (!shares_runtime(job)) {
      if (!table.is_set("runtime")) return;
      fail(ExitCode::kUsage, "--runtime: {}; leave it out",
           is_trainer(job.kind) ? "a TrainJob of v2.1 in a queue has a runtime of its own"
                                : "only a TrainJob has one");
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
    if (!model_config_.empty() && !hub_model_name(source) && !std::filesystem::exists(source, error)) {
      fail(
          ExitCode::kNoInput,
          "--model_config: expected a local config.json or its folder, a name on the Hub (OWNER/MODEL), or a "
          "preset ({}), found '{}'",
          fmt::join(presets, ", "), printable(source));
    }
    return read_model_config(local_model(source, ModelFiles::kNoWeights));
  }

  JobSettings job_;  // what flags say of it
  RunSettings given_;
  size_t num_training_flags_ = 0;
  std::vector<const Flag*> given_flags_;  // of these
  std::string model_config_;
  JobNodes nodes_;
  int64_t num_nodes_ = 1;
  double storage_mb_per_s_ = 500;
  std::string catalogue_;
};

}  // namespace

std::unique_ptr<Command> make_deploy_kubernetes_command() {
  return std::make_unique<DeployKubernetesCommand>();
}

}  // namespace tessera
