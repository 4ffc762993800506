// Queues of Kueue, nodes of Karpenter, and what refers to what.
#include <algorithm>
#include <set>

#include "base/text.h"
#include "deploy/lint_rules.h"

namespace tessera {
namespace {

void lint_cluster_queue(const Manifest& queue, LintReport* report) {
  const Value* const selector = value_at(queue.body, "spec.namespaceSelector");
  if (selector == nullptr || selector->object() == nullptr) {
    report->add(queue, "spec.namespaceSelector",
                "is missing: without it the queue admits nothing; {{}} is all namespaces");
  }
  for (const Value& group : list_at(queue.body, "spec.resourceGroups")) {
    const Value::List& covered = list_at(group, "coveredResources");
    if (covered.empty()) report->add(queue, "spec.resourceGroups", "coveredResources is missing");
    for (const Value& flavor : list_at(group, "flavors")) {
      const Value::List& resources = list_at(flavor, "resources");
      const bool same = resources.size() == covered.size() &&
                        std::ranges::equal(resources, covered, [](const Value& resource, const Value& name) {
                          return resource.find("name") != nullptr && *resource.find("name") == name;
                        });
      if (!same) {
        report->add(queue, "spec.resourceGroups",
                    "the resources of flavor '{}' are not the coveredResources in their order",
                    text_at(flavor, "name"));
      }
      const std::string name = text_at(flavor, "name");
      if (!report->of_kind("ResourceFlavor").empty() && report->find("ResourceFlavor", name) == nullptr) {
        report->add(queue, "spec.resourceGroups", "no ResourceFlavor is called '{}'", name);
      }
    }
  }
}

// Compares a flavor with the labels and taints of the pools that have all of its labels.
void lint_flavor(const Manifest& flavor, LintReport* report) {
  const Value* const labels = value_at(flavor.body, "spec.nodeLabels");
  if (!text_at(flavor.body, "spec.topologyName").empty() &&
      (labels == nullptr || labels->object() == nullptr)) {
    report->add(flavor, "spec.nodeLabels", "topologyName needs at least one label");
  }
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
  const Value* const reference = value_at(pool.body, "spec.template.spec.nodeClassRef");
  for (const char* field : {"group", "kind", "name"}) {
    if (reference == nullptr || text_at(*reference, field).empty()) {
      report->add(pool, "spec.template.spec.nodeClassRef", "{} is missing", field);
    }
  }
  const std::string node_class = reference == nullptr ? "" : text_at(*reference, "name");
  if (!report->of_kind("EC2NodeClass").empty() && report->find("EC2NodeClass", node_class) == nullptr) {
    report->add(pool, "spec.template.spec.nodeClassRef", "no EC2NodeClass is called '{}'", node_class);
  }
  for (const Value& each : list_at(pool.body, "spec.template.spec.requirements")) {
    const std::string key = text_at(each, "key"), op = text_at(each, "operator");
    const size_t num_values = list_at(each, "values").size();
    if ((op == "In" || op == "NotIn") && num_values == 0) {
      report->add(pool, "spec.template.spec.requirements", "{} {} has no values", key, op);
    }
    if ((op == "Gt" || op == "Lt") && num_values != 1) {
      report->add(pool, "spec.template.spec.requirements", "expected one value for {} {}, found {}", key, op,
                  num_values);
    }
    if (const Value* const least = each.find("minValues");
        op == "In" && least != nullptr && least->integer() != nullptr &&
        *least->integer() > static_cast<int64_t>(num_values)) {
      report->add(pool, "spec.template.spec.requirements", "{} has fewer values than minValues", key);
    }
  }
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

// Whether a Service, budget or monitor selects one of the pods among the documents.
bool selects_any(const LintReport& report, const Value* match_labels, const std::string& port) {
  for (const Manifest& each : report.manifests()) {
    for (const PodTemplate& pod : pod_templates(each)) {
      if (!has_labels(value_at(*pod.value, "metadata.labels"), match_labels)) continue;
      if (port.empty()) return true;
      for (const Value& container : list_at(*pod.value, "spec.containers")) {
        for (const Value& at : list_at(container, "ports")) {
          if (text_at(at, "name") == port) return true;
        }
      }
    }
  }
  return false;
}

bool has_pods(const LintReport& report) {
  return std::ranges::any_of(report.manifests(),
                             [](const Manifest& each) { return !pod_templates(each).empty(); });
}

void lint_selectors(LintReport* report) {
  const bool any_pods = has_pods(*report);
  // Labels that a TrainJob adds to the pods of its runtime are not in a template.
  const bool has_train_jobs = !report->of_kind("TrainJob").empty();
  for (const Manifest& each : report->manifests()) {
    const std::string kind = each.kind();
    if (kind == "Deployment" || kind == "DaemonSet" || kind == "StatefulSet") {
      if (!has_labels(value_at(each.body, "spec.template.metadata.labels"),
                      value_at(each.body, "spec.selector.matchLabels"))) {
        report->add(each, "spec.selector", "does not match the labels of its own pods");
      }
    }
    if (!any_pods || has_train_jobs) continue;
    if (kind == "Service" && each.body.find("spec") != nullptr &&
        value_at(each.body, "spec.selector") != nullptr &&
        !selects_any(*report, value_at(each.body, "spec.selector"), "")) {
      report->add(each, "spec.selector", "selects none of the pods");
    }
    if (kind == "PodDisruptionBudget" &&
        !selects_any(*report, value_at(each.body, "spec.selector.matchLabels"), "")) {
      report->add(each, "spec.selector", "selects none of the pods");
    }
    if (kind == "PodMonitor") {
      for (const Value& endpoint : list_at(each.body, "spec.podMetricsEndpoints")) {
        const std::string port = text_at(endpoint, "port");
        if (!port.empty() && !selects_any(*report, value_at(each.body, "spec.selector.matchLabels"), port)) {
          report->add(each, "spec.podMetricsEndpoints", "no pod that it selects has a port called '{}'",
                      port);
        }
      }
    }
  }
}

void lint_budget(const Manifest& budget, LintReport* report) {
  const Value* const least = value_at(budget.body, "spec.minAvailable");
  const Value* const most = value_at(budget.body, "spec.maxUnavailable");
  if ((least == nullptr) == (most == nullptr)) {
    report->add(budget, "spec", "expected either minAvailable or maxUnavailable");
  }
  if (most != nullptr && most->integer() != nullptr && *most->integer() == 0) {
    report->add(budget, "spec.maxUnavailable", "0 blocks every drain");
  }
}

// Where some claims are defined, all that pods mount are expected to be.
void lint_claims(LintReport* report) {
  const std::vector<const Manifest*> claims = report->of_kind("PersistentVolumeClaim");
  if (claims.empty()) return;
  for (const Manifest& each : report->manifests()) {
    for (const PodTemplate& pod : pod_templates(each)) {
      for (const Value& volume : list_at(*pod.value, "spec.volumes")) {
        const std::string name = text_at(volume, "persistentVolumeClaim.claimName");
        if (!name.empty() && report->find("PersistentVolumeClaim", name) == nullptr) {
          report->add(each, pod.path, "no PersistentVolumeClaim is called '{}'", name);
        }
      }
    }
  }
}

void lint_local_queues(LintReport* report) {
  const bool has_queues = !report->of_kind("LocalQueue").empty();
  for (const Manifest& each : report->manifests()) {
    const Value* const labels = value_at(each.body, "metadata.labels");
    const Value* const queue = labels == nullptr ? nullptr : labels->find("kueue.x-k8s.io/queue-name");
    if (has_queues && queue != nullptr && queue->string() != nullptr) {
      const Manifest* const found = report->find("LocalQueue", *queue->string());
      if (found == nullptr || found->name_space() != each.name_space()) {
        report->add(each, "metadata.labels", "no LocalQueue of its namespace is called '{}'",
                    *queue->string());
      }
    }
    if (each.kind() == "LocalQueue" && !report->of_kind("ClusterQueue").empty() &&
        report->find("ClusterQueue", text_at(each.body, "spec.clusterQueue")) == nullptr) {
      report->add(each, "spec.clusterQueue", "no ClusterQueue is called '{}'",
                  text_at(each.body, "spec.clusterQueue"));
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
  for (const Manifest* const each : report->of_kind("EC2NodeClass")) {
    for (const char* field : {"amiSelectorTerms", "subnetSelectorTerms", "securityGroupSelectorTerms"}) {
      if (list_at(each->body, std::string("spec.") + field).empty()) {
        report->add(*each, std::string("spec.") + field, "is missing");
      }
    }
    if (text_at(each->body, "spec.role").empty() == text_at(each->body, "spec.instanceProfile").empty()) {
      report->add(*each, "spec", "expected either role or instanceProfile");
    }
  }
}

void lint_references(LintReport* report) {
  lint_selectors(report);
  lint_claims(report);
  for (const Manifest* const each : report->of_kind("PodDisruptionBudget")) lint_budget(*each, report);
}

}  // namespace tessera
