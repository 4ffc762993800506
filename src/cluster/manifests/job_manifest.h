// The documents of a job, and of the runtime that TrainJobs share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/choice.h"
#include "cluster/manifests/job_plan.h"
#include "cluster/manifests/templates.h"

namespace tessera {

// Who starts the pods: Kubeflow Trainer of some version, JobSet, Kubernetes alone, or Kubeflow's older
// training-operator.
enum class JobKind { kTrainerV21, kTrainerV22, kTrainerV23, kTrainerV24, kJobSet, kJob, kPyTorchJob };

inline constexpr Word<JobKind> kJobKinds[] = {
    {"v2.1", JobKind::kTrainerV21},  // of --trainer
    {"v2.2", JobKind::kTrainerV22}, {"v2.3", JobKind::kTrainerV23}, {"v2.4", JobKind::kTrainerV24},
    {"jobset", JobKind::kJobSet},   {"job", JobKind::kJob},         {"pytorchjob", JobKind::kPyTorchJob}};
inline bool is_trainer(JobKind kind) { return kind < JobKind::kJobSet; }
// Whether a TrainJob brings a TrainingRuntime of its own in place of patches to the ClusterTrainingRuntime
// that jobs share. Kueue adds a patch to those of a TrainJob. v2.1 has one list of them, which nobody may
// change while the job runs: a manifest with that list could not be applied again.
inline bool has_own_runtime(JobKind kind, const std::string& queue) {
  return kind == JobKind::kTrainerV21 && !queue.empty();
}

// Exit codes after which another attempt would end the same way: errors of the user or the configuration,
// bugs, values that are not finite (docs/operations.md).
inline constexpr int kFinalCodes[] = {64, 65, 66, 70, 78, 79};

// The pods of all jobs share these settings; docs/kubernetes.md uses the same names.
struct PodSettings {
  std::string name_space = "training";
  std::string image;
  std::string claim = "training-data";
  std::string hf_secret = "hf-token";
  std::string priority_class = "tessera-training";
  std::string runtime = "tessera";
  bool node_check = false;
  bool on_card = false;   // runs on NVIDIA cards: the fields of such pods, on the nodes that have some
  bool needs_amx = true;  // the check fails on a node without it
  int64_t port = 9400;    // of the metrics
  int64_t pod_grace_s = kMostGraceSeconds;
};
inline constexpr const char* kDataMount = "/data";
inline constexpr const char* kDefaultClaim = "training-data";
inline constexpr const char* kMetricsSecret = "tessera-metrics";
// An annotation of jobs: the memory that their plan takes in a pod.
inline constexpr const char* kPlannedMemory = "tessera-planned-memory";
// TrainJobs that `tessera deploy kubernetes` did not write use this secret.
inline constexpr const char* kRendezvousSecret = "tessera-rendezvous";

struct JobSettings {
  PodSettings pod;
  JobKind kind = JobKind::kTrainerV21;
  std::string name;
  int num_nodes = 1;
  int local_world_size = 1;
  PodSize size;
  int64_t planned_bytes = 0;  // of the pod's memory; 0 = not known
  int64_t num_cards = 0;      // of a pod
  int64_t num_efa = 0;        // EFA interfaces of a pod
  GracePeriods grace;
  std::vector<std::string> train_arguments;  // after the word train
  std::string instance;                      // "" = any node
  std::string capacity = "any";              // or spot, on-demand, reserved
  std::string zone;                          // "" = any, but the same for all nodes
  std::string queue;                         // "" = without Kueue
  bool topology = false;                     // which places the pods (deploy queue --topology)
  std::string rendezvous_secret;             // the user's own; "" = one is generated
  std::string monitoring_namespace = "monitoring";
  std::vector<std::string> about;  // lines of the comment above the job
};

// The longest suffix of a pod's host name: "-node-0-3".
std::string pod_suffix(JobKind kind, int num_nodes);

// Secret, NetworkPolicy, PodDisruptionBudget and the job itself. `secret` is what a generated Secret holds.
std::string job_documents(const DeployTemplates& templates, const JobSettings& job,
                          const std::string& secret);

struct RuntimeVolume {
  std::string about;
  std::string server, path;                                     // NFS; "" otherwise
  std::string driver, handle;                                   // CSI
  std::vector<std::pair<std::string, std::string>> attributes;  // CSI
  std::vector<std::string> mount_options;
  bool has_owner = false;  // an access point says to whom its folder belongs
};

RuntimeVolume lustre_volume(const std::string& id, const std::string& dns_name,
                            const std::string& mount_name);
RuntimeVolume efs_volume(const std::string& handle);  // the ID, or "ID::ACCESS_POINT"

struct RuntimeSettings {
  PodSettings pod;
  std::optional<JobKind> trainer;            // nullopt: no ClusterTrainingRuntime
  std::optional<std::string> storage_class;  // of a new volume; "" = the cluster's default
  std::optional<RuntimeVolume> volume;       // one that exists
  std::string storage = "1200Gi";
  std::string monitoring_namespace = "monitoring";
  std::vector<std::pair<std::string, std::string>> secrets;  // names and tokens
};

// PriorityClass, Secrets, claim, NetworkPolicies and ClusterTrainingRuntime, for a namespace that exists: to
// delete them as a file leaves its jobs.
std::string runtime_documents(const DeployTemplates& templates, const RuntimeSettings& runtime);

// The volume of a cluster of deploy/eks: `context` has the variables of cluster_storage.yaml.jinja; `storage`
// says what is claimed, without a volume if the template makes one.
std::string storage_documents(const DeployTemplates& templates, Value::Object context,
                              const RuntimeSettings& storage);

// An argument of a container in which Kubernetes finds no reference to a variable: it takes $(NAME) for one,
// and $$ for $.
std::string without_references(std::string_view word);

// 64 hexadecimal digits from the system's generator.
std::string random_token();

}  // namespace tessera
