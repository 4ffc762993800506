// Queues of Kueue, nodes of Karpenter, and what selects or needs what.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/text.h"
#include "cluster/manifests/allocatable.h"
#include "cluster/manifests/job_manifest.h"
#include "cluster/manifests/lint_rules.h"

namespace tessera {
namespace {

void lint_cluster_queue(const Manifest& queue, LintReport* report) {
  const Value* const selector = value_at(queue.body, "spec.namespaceSelector");
  if (selector == nullptr || selector->object() == nullptr) {
    report->add(queue, "spec.namespaceSelector",
                "is missing: without it the queue admits nothing; {{}} is all namespaces");
  }
  for (const Value& group : list_at(queue.body, "spec.resourceGroups")) {
    for (const Value& flavor : list_at(group, "flavors")) {
      report->expect_one(queue, "spec.resourceGroups", "ResourceFlavor", text_at(flavor, "name"));
    }
  }
}

// Compares a flavor with the labels and taints of the pools that have all of its labels.
void lint_flavor(const Manifest& flavor, LintReport* report) {
  const Value* const labels = value_at(flavor.body, "spec.nodeLabels");
  const std::vector<const Manifest*> pools = report->of_kind("NodePool");
  if (pools.empty() || labels == nullptr || labels->object() == nullptr) return;
  bool any = false;
  for (const Manifest* const pool : pools) {
    if (!has_labels(value_at(pool->body, "spec.template.metadata.labels"), labels)) continue;
    any = true;
    for (const Value& taint : list_at(pool->body, "spec.template.spec.taints")) {
      if (!tolerates(list_at(flavor.body, "spec.tolerations"), taint)) {
        report->add(flavor, "spec.tolerations", "the taint {} of NodePool {} is not tolerated",
                    text_at(taint, "key"), pool->name());
      }
    }
  }
  if (!any) report->add(flavor, "spec.nodeLabels", "no NodePool gives its nodes these labels");
}

// Whether a pod that selects these labels may run on the nodes of a pool, as far as the pool's own labels
// say.
bool selects_pool(const Value* selector, const Manifest& pool) {
  if (selector == nullptr || selector->object() == nullptr) return false;
  const Value* const labels = value_at(pool.body, "spec.template.metadata.labels");
  if (labels == nullptr || labels->object() == nullptr) return false;
  return std::ranges::any_of(*labels->object(), [&](const Value::Field& field) {
    const Value* const wanted = selector->find(field.name);
    return wanted != nullptr && *wanted == field.value;
  });
}

void lint_pool(const Manifest& pool, LintReport* report) {
  report->expect_one(pool, "spec.template.spec.nodeClassRef", "EC2NodeClass",
                     text_at(pool.body, "spec.template.spec.nodeClassRef.name"));
  for (const Manifest& each : report->manifests()) {
    for (const PodTemplate& pod : pod_templates(each)) {
      if (!selects_pool(value_at(*pod.value, "spec.nodeSelector"), pool)) continue;
      for (const Value& taint : list_at(pool.body, "spec.template.spec.taints")) {
        if (!tolerates(list_at(*pod.value, "spec.tolerations"), taint)) {
          report->add(each, pod.path, "the taint {} of NodePool {}, which it selects, is not tolerated",
                      text_at(taint, "key"), pool.name());
        }
      }
    }
  }
}

// The pods of a document with the labels that they will have. Those of a TrainJob are the pods of its runtime
// with what the job patches; without the runtime among the documents they are not known.
struct LabelledPod {
  const Value* pod;
  Value labels;
};

void merge_labels(const Value* more, Value::Object* labels) {
  if (more == nullptr || more->object() == nullptr) return;
  for (const Value::Field& field : *more->object()) {
    std::erase_if(*labels, [&](const Value::Field& each) { return each.name == field.name; });
    labels->push_back(field);
  }
}

std::vector<LabelledPod> labelled_pods(const LintReport& report) {
  std::vector<LabelledPod> pods;
  const auto add = [&](const PodTemplate& pod, const std::vector<const Value*>& patches) {
    Value::Object labels;
    merge_labels(value_at(*pod.value, "metadata.labels"), &labels);
    for (const Value* const patch : patches) merge_labels(patch, &labels);
    pods.push_back({pod.value, Value(std::move(labels))});
  };
  for (const Manifest& each : report.manifests()) {
    if (each.kind() != "TrainJob") {
      for (const PodTemplate& pod : pod_templates(each)) add(pod, {});
      continue;
    }
    const Manifest* const runtime = runtime_of(each, report);
    if (runtime == nullptr) continue;
    std::vector<const Value*> patches;
    for (const PatchedPod& patch : patched_pods(each))
      patches.push_back(value_at(*patch.value, "metadata.labels"));
    for (const PodTemplate& pod : pod_templates(*runtime)) add(pod, patches);
  }
  return pods;
}

// Whether a Service, budget or monitor selects one of the pods.
bool selects_any(const std::vector<LabelledPod>& pods, const Value* match_labels, const std::string& port) {
  return std::ranges::any_of(pods, [&](const LabelledPod& each) {
    if (!has_labels(&each.labels, match_labels)) return false;
    if (port.empty()) return true;
    return std::ranges::any_of(list_at(*each.pod, "spec.containers"), [&](const Value& container) {
      return std::ranges::any_of(list_at(container, "ports"),
                                 [&](const Value& at) { return text_at(at, "name") == port; });
    });
  });
}

// Whether the pods of a TrainJob are not known, because its runtime is elsewhere.
bool lacks_runtime(const LintReport& report) {
  return std::ranges::any_of(report.of_kind("TrainJob"),
                             [&](const Manifest* job) { return runtime_of(*job, report) == nullptr; });
}

void lint_selectors(LintReport* report) {
  const std::vector<LabelledPod> pods = labelled_pods(*report);
  if (pods.empty() || lacks_runtime(*report)) return;
  for (const Manifest& each : report->manifests()) {
    const std::string kind = each.kind();
    const Value* const selector = value_at(each.body, "spec.selector");
    const Value* const match_labels = value_at(each.body, "spec.selector.matchLabels");
    if ((kind == "Service" && selector != nullptr && !selects_any(pods, selector, "")) ||
        (kind == "PodDisruptionBudget" && !selects_any(pods, match_labels, ""))) {
      report->add(each, "spec.selector", "selects none of the pods");
    }
    if (kind == "PodMonitor") {
      for (const Value& endpoint : list_at(each.body, "spec.podMetricsEndpoints")) {
        const std::string port = text_at(endpoint, "port");
        if (!port.empty() && !selects_any(pods, match_labels, port)) {
          report->add(each, "spec.podMetricsEndpoints", "no pod that it selects has a port called '{}'",
                      port);
        }
      }
    }
  }
}

// Returns how much of a resource all pods of a job take together; nullopt: not known.
std::optional<double> taken_by_job(const Manifest& job, const std::string& resource) {
  // Kubernetes takes a limit for a request that is not there.
  const auto request_of = [&](const Value& at, const char* path) {
    const Value* const request = value_at(at, fmt::format("{}.requests.'{}'", path, resource));
    return quantity(request != nullptr ? request
                                       : value_at(at, fmt::format("{}.limits.'{}'", path, resource)));
  };
  if (job.kind() == "TrainJob") {
    const auto of_pod = request_of(job.body, "spec.trainer.resourcesPerNode");
    const auto num_pods = quantity(value_at(job.body, "spec.trainer.numNodes"));
    return of_pod ? std::optional(*of_pod * num_pods.value_or(1)) : std::nullopt;
  }
  double sum = 0;
  for (const PodTemplate& pod : pod_templates(job)) {
    if (pod.job == nullptr) return std::nullopt;
    const double num_pods = quantity(value_at(*pod.job, "parallelism")).value_or(1);
    for (const Value& container : list_at(*pod.value, "spec.containers")) {
      sum += num_pods * request_of(container, "resources").value_or(0);
    }
  }
  return sum;
}

bool asks_for_topology(const Manifest& job) {
  constexpr std::string_view kPrefix = "kueue.x-k8s.io/podset-";
  const auto asks = [&](const Value* annotations) {
    return annotations != nullptr && annotations->object() != nullptr &&
           std::ranges::any_of(*annotations->object(), [&](const Value::Field& field) {
             return field.name.starts_with(kPrefix) && field.name.ends_with("-topology");
           });
  };
  return std::ranges::any_of(
             pod_templates(job),
             [&](const PodTemplate& pod) { return asks(value_at(*pod.value, "metadata.annotations")); }) ||
         std::ranges::any_of(patched_pods(job), [&](const PatchedPod& patch) {
           return asks(value_at(*patch.value, "metadata.annotations"));
         });
}

// Whether a queue of Kueue, if it is among the documents, can ever admit a job.
void lint_admission(const Manifest& job, const std::string& queue_name, LintReport* report) {
  const Manifest* const queue = report->find("ClusterQueue", queue_name);
  if (queue == nullptr) return;
  std::map<std::string, double> quotas;  // of all flavors
  bool has_topology = false, are_known = true;
  for (const Value& group : list_at(queue->body, "spec.resourceGroups")) {
    for (const Value& flavor : list_at(group, "flavors")) {
      const Manifest* const found = report->find("ResourceFlavor", text_at(flavor, "name"));
      const bool has = found != nullptr && !text_at(found->body, "spec.topologyName").empty();
      has_topology = has_topology || has;
      are_known = are_known && found != nullptr;
      for (const Value& resource : list_at(flavor, "resources")) {
        quotas[text_at(resource, "name")] += quantity(resource.find("nominalQuota")).value_or(0);
      }
    }
  }
  for (const char* device : {kCardResource, kEfaResource}) {
    const std::optional<double> taken = taken_by_job(job, device);
    if (taken && *taken > 0 && !quotas.contains(device)) {
      report->add(job, "metadata.labels",
                  "needs {}, which ClusterQueue {} does not count: it is never admitted", device, queue_name);
    }
  }
  for (const auto& [resource, quota] : quotas) {
    const std::optional<double> taken = taken_by_job(job, resource);
    if (taken && *taken > quota) {
      report->add(job, "metadata.labels",
                  "needs {:g} of {}, the quota of ClusterQueue {} is {:g}: it is never admitted", *taken,
                  resource, queue_name, quota);
    }
  }
  if (asks_for_topology(job) && !has_topology && are_known) {
    report->add(job, "metadata.labels", "asks for a topology, which no flavor of ClusterQueue {} has",
                queue_name);
  }
  if (!asks_for_topology(job) && has_topology) {
    report->add(job, "metadata.labels",
                "the flavors of ClusterQueue {} have a topology, but the pods ask for none "
                "(kueue.x-k8s.io/podset-required-topology): any hosts would do",
                queue_name);
  }
}

void lint_local_queues(LintReport* report) {
  const bool has_queues = !report->of_kind("LocalQueue").empty();
  for (const Manifest& each : report->manifests()) {
    const std::string queue = text_at(each.body, "metadata.labels.'kueue.x-k8s.io/queue-name'");
    if (has_queues && !queue.empty()) {
      const Manifest* const found = report->find("LocalQueue", queue);
      if (found == nullptr || found->name_space() != each.name_space()) {
        report->add(each, "metadata.labels", "no LocalQueue of its namespace is called '{}'", queue);
      } else {
        lint_admission(each, text_at(found->body, "spec.clusterQueue"), report);
      }
    }
    if (each.kind() == "LocalQueue")
      report->expect_one(each, "spec.clusterQueue", "ClusterQueue", text_at(each.body, "spec.clusterQueue"));
  }
}

// Pods that find the Secret ask for its token.
void lint_tokens(LintReport* report) {
  const Manifest* const secret = report->find("Secret", kMetricsSecret);
  if (secret == nullptr) return;
  for (const Manifest* const monitor : report->of_kind("PodMonitor")) {
    if (monitor->name_space() != secret->name_space() ||
        text_at(monitor->body, "spec.selector.matchLabels.'app.kubernetes.io/name'") != "tessera")
      continue;
    for (const Value& endpoint : list_at(monitor->body, "spec.podMetricsEndpoints")) {
      if (value_at(endpoint, "authorization") != nullptr ||
          value_at(endpoint, "bearerTokenSecret") != nullptr)
        continue;
      report->add(
          *monitor, "spec.podMetricsEndpoints",
          "shows no token, and pods ask for that of the Secret {0} (deploy alerts --token_secret {0})",
          kMetricsSecret);
    }
  }
}

}  // namespace

void lint_queues(LintReport* report) {
  for (const Manifest* const each : report->of_kind("ClusterQueue")) lint_cluster_queue(*each, report);
  for (const Manifest* const each : report->of_kind("ResourceFlavor")) lint_flavor(*each, report);
  lint_local_queues(report);
}

void lint_nodes(LintReport* report) {
  for (const Manifest* const each : report->of_kind("NodePool")) lint_pool(*each, report);
}

void lint_references(LintReport* report) {
  lint_selectors(report);
  lint_tokens(report);
  // Where some of a kind are defined, all that pods need are expected to be.
  for (const Reference& each : pod_references(*report))
    report->expect_one(*each.manifest, each.path, each.kind, each.name);
  for (const Manifest* const each : report->of_kind("PodDisruptionBudget")) {
    const Value* const most = value_at(each->body, "spec.maxUnavailable");
    if (most != nullptr && *most == Value(0)) {
      report->add(*each, "spec.maxUnavailable", "0 blocks every drain");
    }
  }
}

}  // namespace tessera
