#include "cluster/manifests/job_manifest.h"

#include <sys/random.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "cluster/manifests/quantity.h"

namespace tessera {
namespace {

constexpr int64_t kMaxRestarts = 10;       // of all pods
constexpr int64_t kMaxLaunchRestarts = 3;  // of the ranks inside their pods
constexpr int kRendezvousPort = 29500;     // as Kubeflow Trainer sets it
// At /dev/shm: NCCL takes some MiB for every pair of cards and channel, far below this with 8 cards.
constexpr const char* kSharedMemory = "1Gi";

Value::List list_of(const std::vector<std::string>& texts) { return {texts.begin(), texts.end()}; }

Value::Object named(const char* name, Value value) { return {{"name", name}, {"value", std::move(value)}}; }

Value final_codes() { return Value::List(std::begin(kFinalCodes), std::end(kFinalCodes)); }

void add(Value::Object* context, Value::Object more) {
  for (Value::Field& field : more) context->push_back(std::move(field));
}

// Makes the output of a template a variable of its name.
void add_rendered(const DeployTemplates& templates, const char* name, Value::Object* context) {
  context->push_back({name, templates.render(std::string(name) + ".yaml.jinja", *context)});
}

Value::Object pod_context(const PodSettings& pod) {
  return {{"namespace", pod.name_space},
          {"image", pod.image},
          {"mount", kDataMount},
          {"claim", pod.claim},
          {"hf_secret", pod.hf_secret},
          {"metrics_secret", kMetricsSecret},
          {"rendezvous_secret", kRendezvousSecret},
          {"priority_class", pod.priority_class},
          {"runtime", pod.runtime},
          {"node_check", pod.node_check},
          {"on_card", pod.on_card},
          {"taint", node_kind(pod.on_card).taint},
          {"shm", kSharedMemory},
          {"needs_amx", pod.needs_amx},
          {"port", pod.port},
          {"pod_grace", pod.pod_grace_s},
          {"max_restarts", kMaxRestarts},
          {"final_codes", final_codes()}};
}

Value node_selector(const JobSettings& job) {
  Value::List labels = {named("nodeType", node_kind(job.pod.on_card).type)};
  if (!job.instance.empty()) labels.emplace_back(named("node.kubernetes.io/instance-type", job.instance));
  if (job.capacity != "any") labels.emplace_back(named("karpenter.sh/capacity-type", job.capacity));
  if (!job.zone.empty()) labels.emplace_back(named("topology.kubernetes.io/zone", job.zone));
  return labels;
}

// Counts of what device plugins offer, as the limits of a container have them.
Value devices_of(int64_t num_cards, int64_t num_efa) {
  Value::List devices;
  if (num_cards > 0) devices.emplace_back(named(kCardResource, count_quantity(num_cards)));
  if (num_efa > 0) devices.emplace_back(named(kEfaResource, count_quantity(num_efa)));
  return devices;
}

Value volume_context(const RuntimeVolume& volume, const PodSettings& pod) {
  Value::List attributes;
  for (const auto& [name, value] : volume.attributes) attributes.emplace_back(named(name.c_str(), value));
  return Value::Object{{"name", pod.name_space + "-" + pod.claim},
                       {"about", volume.about},
                       {"server", volume.server},
                       {"path", volume.path},
                       {"driver", volume.driver},
                       {"handle", volume.handle},
                       {"attributes", std::move(attributes)},
                       {"mount_options", list_of(volume.mount_options)}};
}

// The variables that a controller of Kubeflow would set, but for PET_NODE_RANK.
Value pet_variables(const JobSettings& job) {
  if (is_trainer(job.kind) || job.kind == JobKind::kPyTorchJob) return Value::List();
  const std::string host = job.name + (job.kind == JobKind::kJobSet ? "-node-0-0." : "-0.") + job.name;
  return Value::List{named("PET_NNODES", std::to_string(job.num_nodes)),
                     named("PET_NPROC_PER_NODE", std::to_string(job.local_world_size)),
                     named("PET_MASTER_ADDR", host),
                     named("PET_MASTER_PORT", std::to_string(kRendezvousPort))};
}

std::vector<std::string> pod_arguments(const JobSettings& job) {
  std::vector<std::string> words = {"launch",
                                    "--rdzv_secret_file=/etc/tessera/rendezvous/secret",
                                    fmt::format("--rdzv_id={}", job.name),
                                    fmt::format("--max_restarts={}", kMaxLaunchRestarts),
                                    fmt::format("--termination_grace_s={}", job.grace.launch_s),
                                    "--under_controller",
                                    "train",
                                    fmt::format("--grace_period_s={}", job.grace.run_s)};
  words.insert(words.end(), job.train_arguments.begin(), job.train_arguments.end());
  for (std::string& word : words) word = without_references(word);
  return words;
}

// A TrainJob that says only what to train gets these. Kubernetes puts the job's name into the folder.
std::vector<std::string> runtime_arguments(const PodSettings& pod) {
  const GracePeriods grace = longest_grace(/*spot=*/true);
  return {"launch",
          fmt::format("--max_restarts={}", kMaxLaunchRestarts),
          fmt::format("--termination_grace_s={}", grace.launch_s),
          "--under_controller",
          "train",
          fmt::format("--grace_period_s={}", grace.run_s),
          fmt::format("--output_dir={}/runs/$(PET_RDZV_ID)", kDataMount),
          "--resume_from_checkpoint=auto",
          fmt::format("--metrics_port={}", pod.port),
          "--metrics_host=0.0.0.0"};
}

Value::Object job_context(const JobSettings& job, const std::string& secret) {
  Value::Object context = pod_context(job.pod);
  const bool has_generated = job.rendezvous_secret.empty();
  add(&context, {{"job", job.name},
                 {"trainer", std::string(word_of(kJobKinds, job.kind))},
                 {"in_jobset", is_trainer(job.kind) || job.kind == JobKind::kJobSet},
                 {"in_runtime", has_own_runtime(job.kind, job.queue)},
                 {"nodes", job.num_nodes},
                 {"ranks", job.local_world_size},
                 {"cpus", count_quantity(job.size.cpus)},
                 {"memory", bytes_quantity(job.size.memory_bytes)},
                 {"planned_memory_name", kPlannedMemory},
                 {"planned_memory", job.planned_bytes == 0 ? "" : bytes_quantity(job.planned_bytes)},
                 {"devices", devices_of(job.num_cards, job.num_efa)},
                 {"check_devices", devices_of(job.num_cards, 0)},
                 {"check_cpus", count_quantity(job.size.cpus)},
                 {"check_memory", bytes_quantity(job.size.memory_bytes)},
                 {"node_selector", node_selector(job)},
                 {"same_zone", !job.instance.empty() && job.num_nodes > 1 && !job.topology},
                 {"topology", job.topology},
                 {"queue", job.queue},
                 {"workload_priority", job.pod.priority_class},
                 {"secret", has_generated ? job.name + "-rendezvous" : job.rendezvous_secret},
                 {"secret_value", has_generated ? Value(secret) : Value()},
                 {"monitoring_namespace", job.monitoring_namespace},
                 {"args", list_of(pod_arguments(job))},
                 {"pet", pet_variables(job)},
                 {"own_claim", job.pod.claim != kDefaultClaim},
                 {"patches_grace", job.kind == JobKind::kTrainerV23 || job.kind == JobKind::kTrainerV24},
                 {"runtime_grace", kMostGraceSeconds},
                 {"launch_grace", job.grace.launch_s},
                 {"plan", list_of(job.about)}});
  return context;
}

// A file system that belongs to root when it is new; the owner of an NFS export is the server's affair.
void add_volume_owner(const DeployTemplates& templates, const std::optional<RuntimeVolume>& volume,
                      Value::Object* context) {
  if (!volume || volume->driver.empty() || volume->has_owner) {
    context->push_back({"volume_owner", ""});
    return;
  }
  context->push_back({"volume_kind", volume->about + " file system"});
  add_rendered(templates, "volume_owner", context);
}

}  // namespace

std::string without_references(std::string_view word) {
  std::string escaped;
  for (const char c : word) escaped.append(c == '$' ? 2 : 1, c);
  return escaped;
}

std::string pod_suffix(JobKind kind, int num_nodes) {
  // The first pod is JOB-master-0.
  if (kind == JobKind::kPyTorchJob) return fmt::format("-worker-{}", std::max(num_nodes - 2, 0));
  return fmt::format("{}-{}", kind == JobKind::kJob ? "" : "-node-0", num_nodes - 1);
}

std::string job_documents(const DeployTemplates& templates, const JobSettings& job,
                          const std::string& secret) {
  Value::Object context = job_context(job, secret);
  std::vector<std::string> documents;
  add_rendered(templates, "job_metadata", &context);
  if (!is_trainer(job.kind) || has_own_runtime(job.kind, job.queue)) {
    add_rendered(templates, "pod", &context);
    if (job.kind != JobKind::kPyTorchJob) add_rendered(templates, "job_spec", &context);
    if (is_trainer(job.kind) || job.kind == JobKind::kJobSet)
      add_rendered(templates, "jobset_spec", &context);
  }
  // First, so that Kubeflow Trainer has seen it when the TrainJob comes.
  if (has_own_runtime(job.kind, job.queue))
    documents.push_back(templates.render("job_runtime.yaml.jinja", context));
  documents.push_back(templates.render("job_objects.yaml.jinja", context));
  documents.push_back(templates.render(is_trainer(job.kind)               ? "trainjob.yaml.jinja"
                                       : job.kind == JobKind::kJobSet     ? "jobset.yaml.jinja"
                                       : job.kind == JobKind::kPyTorchJob ? "pytorchjob.yaml.jinja"
                                                                          : "job.yaml.jinja",
                                       context));
  return join_documents(documents);
}

RuntimeVolume lustre_volume(const std::string& id, const std::string& dns_name,
                            const std::string& mount_name) {
  return {"FSx for Lustre", "", "", "fsx.csi.aws.com", id, {{"dnsname", dns_name}, {"mountname", mount_name}},
          {"flock"}};
}

RuntimeVolume efs_volume(const std::string& handle) {
  RuntimeVolume volume = {"EFS", "", "", "efs.csi.aws.com", handle, {}, {}};
  volume.has_owner = handle.find("::") != std::string::npos;
  return volume;
}

std::string storage_documents(const DeployTemplates& templates, Value::Object context,
                              const RuntimeSettings& storage) {
  add(&context, {{"claim", storage.pod.claim},
                 {"storage_size", storage.storage},
                 {"storage_class", Value()},
                 {"volume", storage.volume ? volume_context(*storage.volume, storage.pod) : Value()}});
  if (storage.volume) add_rendered(templates, "claimed_volume", &context);
  add_volume_owner(templates, storage.volume, &context);
  return templates.render("cluster_storage.yaml.jinja", context);
}

std::string runtime_documents(const DeployTemplates& templates, const RuntimeSettings& runtime) {
  Value::Object context = pod_context(runtime.pod);
  Value::List secrets;
  for (const auto& [name, token] : runtime.secrets)
    secrets.emplace_back(Value::Object{{"name", name}, {"token", token}});
  add(&context,
      {{"job", Value()},
       {"in_jobset", true},
       {"in_runtime", true},
       {"args", list_of(runtime_arguments(runtime.pod))},
       {"monitoring_namespace", runtime.monitoring_namespace},
       {"topology", false},
       {"node_selector", Value::List{named("nodeType", node_kind(runtime.pod.on_card).type)}},
       {"pet", Value::List()},
       // Nodes of all sizes have these, and a pod is Guaranteed only if every container says what it takes.
       {"check_cpus", runtime.pod.on_card ? "2" : "4"},
       {"check_memory", "8Gi"},
       {"check_devices", devices_of(runtime.pod.on_card ? 1 : 0, 0)},
       {"trainer", runtime.trainer ? std::string(word_of(kJobKinds, *runtime.trainer)) : std::string()},
       {"secrets", std::move(secrets)},
       {"storage_size", runtime.storage},
       {"storage_class", runtime.storage_class ? Value(*runtime.storage_class) : Value()},
       {"volume", runtime.volume ? volume_context(*runtime.volume, runtime.pod) : Value()}});
  add_rendered(templates, "claimed_volume", &context);
  add_volume_owner(templates, runtime.volume, &context);
  add_rendered(templates, "pod", &context);
  add_rendered(templates, "job_spec", &context);
  add_rendered(templates, "jobset_spec", &context);
  return templates.render("runtime.yaml.jinja", context);
}

std::string random_token() {
  std::array<char, 32> bytes;
  // Never short for up to 256 bytes once the generator is seeded.
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    fail(ExitCode::kIoError, "cannot read random bytes from the system");
  }
  return hex({bytes.data(), bytes.size()});
}

}  // namespace tessera
