// Before there are pods: Kueue, suspension, and the controllers that create the pods.
#include <algorithm>

#include "base/error.h"
#include "cluster/jobs/diagnosis.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr const char* kQueueLabel = "/metadata/labels/kueue.x-k8s.io~1queue-name";

// The message of Kueue's scheduler names the resource, the flavor and what is missing: kueue
// pkg/scheduler/flavorassigner/flavorassigner.go.
Diagnosis waiting_in_queue(const Json& workload) {
  const std::string queue = text_at(workload, "/spec/queueName");
  const Json& reserved = condition(workload, "QuotaReserved");
  const std::string message = message_line(text_at(reserved, "/message"));
  Diagnosis found = {Outlook::kWaiting, "queued", fmt::format("waiting in queue {}", queue), {}, ""};
  if (!message.empty()) found.details.push_back("Kueue: " + message);
  if (text_at(reserved, "/reason") == "Inadmissible") {
    found.outlook = Outlook::kHindered;
    found.headline = fmt::format("queue {} admits nothing", queue);
    found.advice =
        "tessera deploy queue writes one; kubectl get localqueues,clusterqueues lists the existing ones";
  } else if (says(message, "insufficient unused quota")) {  // of this flavor, whatever others lack
    found.headline = fmt::format("waiting for quota in queue {}", queue);
    found.advice = "it starts when other jobs of the queue end";
  } else if (says(message, "maximum capacity") || says(message, "doesn't match node affinity") ||
             says(message, "untolerated taint") || says(message, "unavailable in ClusterQueue")) {
    found.outlook = Outlook::kHindered;
    found.headline = fmt::format("queue {} can never admit it", queue);
    found.advice =
        "ask for fewer nodes or a smaller instance, or change the ClusterQueue's quota and flavors";
  }
  return found;
}

Diagnosis evicted(const Json& workload, const Json& eviction) {
  const std::string reason = text_at(eviction, "/reason");
  Diagnosis found = waiting_in_queue(workload);
  found.details.insert(found.details.begin(), "Kueue: " + message_line(text_at(eviction, "/message")));
  if (reason == "Preempted") {
    found.state = "preempted";
    found.headline = "preempted by another job, and queued again: it resumes from its last checkpoint";
  } else if (reason == "PodsReadyTimeout") {
    found.state = "evicted";
    found.headline = "evicted because its pods were not all ready in time, and queued again";
    found.advice =
        "waitForPodsReady.timeout in Kueue's configuration should be 15m or more where nodes are provisioned "
        "on demand";
  } else {
    found.state = "evicted";
    found.headline = fmt::format("evicted ({}), and queued again", reason);
  }
  return found;
}

// The newest event of such a kind.
std::optional<std::string> event_message(const JobObjects& job, std::initializer_list<const char*> reasons) {
  for (const Json& event : job.events) {
    const std::string reason = text_at(event, "/reason");
    if (std::ranges::any_of(reasons, [&](const char* wanted) { return reason == wanted; }))
      return fmt::format("{} {}: {}", text_at(event, "/involvedObject/kind"), reason,
                         message_line(text_at(event, "/message")));
  }
  return std::nullopt;
}

}  // namespace

std::optional<Diagnosis> not_admitted(const JobObjects& job) {
  const bool in_policy = job.kind == "PyTorchJob";
  const bool is_suspended = flag_at(job.top, in_policy ? "/spec/runPolicy/suspend" : "/spec/suspend");
  for (const Json& workload : job.workloads) {
    if (is_true(workload, "Admitted") || is_true(workload, "Finished")) continue;
    if (workload.contains("/spec/active"_json_pointer) && workload["spec"]["active"] == false)
      return Diagnosis{
          Outlook::kHindered,
          "deactivated",
          "deactivated: Kueue does not admit it",
          {"Kueue: " + message_line(text_at(condition(workload, "Evicted"), "/message"))},
          "kubectl patch workload ... --type merge -p '{\"spec\":{\"active\":true}}' tries again"};
    if (is_true(workload, "Evicted")) return evicted(workload, condition(workload, "Evicted"));
    if (!is_true(workload, "QuotaReserved")) return waiting_in_queue(workload);
    Diagnosis found = {
        Outlook::kWaiting, "queued", "quota is reserved; an admission check is pending", {}, ""};
    for (const Json& check : list_at(workload, "/status/admissionChecks"))
      found.details.push_back(fmt::format("admission check {} is {}: {}", text_at(check, "/name"),
                                          text_at(check, "/state"),
                                          message_line(text_at(check, "/message"))));
    return found;
  }
  if (!is_suspended) return std::nullopt;
  const std::string queue = text_at(job.top, kQueueLabel);
  if (!queue.empty() && job.workloads.empty())
    return Diagnosis{Outlook::kHindered,
                     "queued",
                     fmt::format("waiting for Kueue to see it (queue {})", queue),
                     {"there is no Workload of this job"},
                     "check that Kueue is installed and manages this kind of job and this namespace"};
  if (!queue.empty()) return std::nullopt;  // admitted just now
  return Diagnosis{
      Outlook::kHindered,
      "suspended",
      "suspended",
      {},
      fmt::format("kubectl patch {} {} --namespace {} --type merge -p '{{\"spec\":{}}}'", job.kind, job.name,
                  job.name_space, in_policy ? R"({"runPolicy":{"suspend":false}})" : R"({"suspend":false})")};
}

std::optional<Diagnosis> without_pods(const JobObjects& job) {
  if (!job.pods.empty()) return std::nullopt;
  Diagnosis found = {Outlook::kWaiting, "starting", "starting: there are no pods yet", {}, ""};
  const int64_t restarts = num_restarts(job);
  if (restarts > 0) {
    found.state = "restarting";
    found.headline = fmt::format("restarting (restart {}): the new pods are not there yet", restarts);
  }
  // ResourceQuota, LimitRange, Pod Security and webhooks refuse pods; JobSet's refuse Jobs and Services.
  if (const auto refusal =
          event_message(job, {"FailedCreate", "JobCreationFailed", "HeadlessServiceCreationFailed"})) {
    found.outlook = Outlook::kHindered;
    found.state = "refused";
    found.headline = "the cluster refuses its pods";
    found.details.push_back(*refusal);
    found.advice = "a quota, limit range, security policy or webhook of the namespace rejects them";
  } else if (job.kind == "TrainJob" && job.jobset.is_null()) {
    found.details.push_back("Kubeflow Trainer has not made a JobSet of it yet");
  }
  return found;
}

}  // namespace tessera
