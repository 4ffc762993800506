// Nodes that the cluster no longer hears from, and the pods that it cannot end there.
#include <algorithm>

#include "base/error.h"
#include "cluster/jobs/diagnosis.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// A pod's default tolerations keep it on an unreachable node for this long.
constexpr int64_t kDefaultTolerationSeconds = 300;

struct LostPod {
  const Json* pod = nullptr;
  std::string node;
};

std::vector<LostPod> lost_pods(const JobObjects& job) {
  std::vector<LostPod> found;
  for (const Json& pod : job.pods) {
    const std::string phase = text_at(pod, "/status/phase"), node = lost_node_of(job, pod);
    if (!node.empty() && phase != "Failed" && phase != "Succeeded") found.push_back({&pod, node});
  }
  return found;
}

int64_t toleration_seconds(const Json& pod) {
  for (const Json& each : list_at(pod, "/spec/tolerations")) {
    if (text_at(each, "/key") == "node.kubernetes.io/unreachable" && text_at(each, "/effect") == "NoExecute")
      return number_at(each, "/tolerationSeconds", kDefaultTolerationSeconds);
  }
  return kDefaultTolerationSeconds;
}

std::string node_line(const JobObjects& job, const std::string& name) {
  for (const Json& node : job.nodes) {
    if (object_name(node) != name) continue;
    const Json& ready = condition(node, "Ready");
    const std::string since = text_at(ready, "/lastTransitionTime");
    return fmt::format("node {}{}: {}", name, since.empty() ? "" : " since " + since,
                       message_line(text_at(ready, "/message")));
  }
  return fmt::format("node {}: lost", name);
}

// Whether this pod is being deleted, and its node already is: Kubernetes removes it within a minute.
bool is_on_deleted_node(const JobObjects& job, const Json& pod) {
  const std::string name = text_at(pod, "/spec/nodeName");
  return is_terminating(pod) && !name.empty() &&
         std::ranges::find(job.not_allowed, "nodes") == job.not_allowed.end() &&
         std::ranges::none_of(job.nodes, [&](const Json& node) { return object_name(node) == name; });
}

std::optional<Diagnosis> on_deleted_node(const JobObjects& job) {
  Diagnosis found = {Outlook::kWaiting, "node_lost", "waiting for pods whose node has been deleted", {}, ""};
  for (const Json& pod : job.pods) {
    if (!is_on_deleted_node(job, pod)) continue;
    found.details.push_back(fmt::format("pod {} was on node {}: Kubernetes removes it within a minute",
                                        object_name(pod), text_at(pod, "/spec/nodeName")));
  }
  return found.details.empty() ? std::nullopt : std::optional(found);
}

}  // namespace

// Only a kubelet says that a pod has ended. Without one a deleted pod stays until its Node object is gone,
// and a JobSet (BlockingRecreate) and a Job (podReplacementPolicy Failed) start no new pods before.
std::optional<Diagnosis> on_lost_node(const JobObjects& job) {
  const std::vector<LostPod> lost = lost_pods(job);
  if (lost.empty()) return on_deleted_node(job);
  std::vector<std::string> nodes;
  for (const LostPod& each : lost) {
    if (std::ranges::find(nodes, each.node) == nodes.end()) nodes.push_back(each.node);
  }
  const std::string names = fmt::format("{}", fmt::join(nodes, " "));
  const char* const which = nodes.size() == 1 ? "node" : "nodes";
  const bool is_stuck =
      std::ranges::any_of(lost, [](const LostPod& each) { return is_terminating(*each.pod); });
  Diagnosis found = {is_stuck ? Outlook::kHindered : Outlook::kWaiting, "node_lost", "", {}, ""};
  found.headline = is_stuck ? fmt::format("waiting for {} {} to go: it no longer answers", which, names)
                            : fmt::format("{} {} no longer answers", which, names);
  for (const std::string& node : nodes) found.details.push_back(node_line(job, node));
  for (const LostPod& each : lost) {
    found.details.push_back(
        is_terminating(*each.pod)
            ? fmt::format("pod {} there is Terminating, and nothing goes on until the Node object is gone",
                          object_name(*each.pod))
            : fmt::format(
                  "pod {} there counts as running until Kubernetes ends it, {} s after the node was lost",
                  object_name(*each.pod), toleration_seconds(*each.pod)));
  }
  if (!job.unread_folder.empty()) {
    found.details.push_back(fmt::format(
        "no pod is left that could say the last step: it is in {}/metrics.jsonl", job.unread_folder));
  }
  found.advice = fmt::format(
      "if {} machine is off for good: kubectl delete node {} (the cloud's controller does so once the "
      "instance has "
      "ended)",
      nodes.size() == 1 ? "its" : "their", names);
  return found;
}

}  // namespace tessera
