// Pods that exist but do not run.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "cluster/jobs/diagnosis.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Reasons of waiting containers: kubernetes/pkg/kubelet/images/types.go, kuberuntime and container/.
constexpr std::array kImageReasons = {"ErrImagePull",      "ImagePullBackOff",  "InvalidImageName",
                                      "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable"};
constexpr std::array kConfigReasons = {"CreateContainerConfigError", "CreateContainerError",
                                       "RunContainerError", "PreCreateHookError", "PostStartHookError"};
constexpr std::array kVolumeReasons = {"FailedMount", "FailedAttachVolume", "FailedMapVolume"};
constexpr std::array kClaimReasons = {"ProvisioningFailed", "FailedBinding"};

template <typename Reasons>
bool is_one_of(const std::string& reason, const Reasons& reasons) {
  return std::ranges::any_of(reasons, [&](const char* each) { return reason == each; });
}

// The newest event about this object that `is_wanted`; null if there is none.
template <typename Wanted>
const Json& event_of(const JobObjects& job, const std::string& name, Wanted is_wanted) {
  static const Json none;
  for (const Json& event : job.events) {
    if (text_at(event, "/involvedObject/name") == name && is_wanted(text_at(event, "/reason"))) return event;
  }
  return none;
}

std::string source_of(const Json& event) {
  const std::string component = text_at(event, "/source/component");
  return component.empty() ? text_at(event, "/reportingComponent") : component;
}

struct Waiting {
  std::string pod, reason, text;
};

// The first container that waits for one of these reasons.
template <typename Reasons>
std::optional<Waiting> waiting_for(const JobObjects& job, const Reasons& reasons) {
  for (const Json* pod : current_pods(job)) {
    for (const char* const list : {"/status/initContainerStatuses", "/status/containerStatuses"}) {
      for (const Json& status : list_at(*pod, list)) {
        const std::string reason = text_at(status, "/state/waiting/reason");
        if (!is_one_of(reason, reasons)) continue;
        const std::string message = message_line(text_at(status, "/state/waiting/message"));
        return Waiting{object_name(*pod), reason,
                       fmt::format("pod {}: {}: {}", object_name(*pod), reason,
                                   message.empty() ? text_at(status, "/image") : message)};
      }
    }
  }
  return std::nullopt;
}

std::optional<Diagnosis> image_problem(const JobObjects& job) {
  const auto waiting = waiting_for(job, kImageReasons);
  if (!waiting) return std::nullopt;
  Diagnosis found = {Outlook::kHindered, "image", "the image cannot be pulled", {waiting->text}, ""};
  // The registry's own answer; the container status only says that it backs off.
  const Json& event =
      event_of(job, waiting->pod, [](const std::string& reason) { return reason == "Failed"; });
  const std::string message = message_line(text_at(event, "/message"));
  if (says(message, "pull")) found.details.push_back(message);
  found.advice =
      "check the name of the image, whether the nodes may pull it, and that it is built for their processors";
  return found;
}

std::optional<Diagnosis> config_problem(const JobObjects& job) {
  const auto waiting = waiting_for(job, kConfigReasons);
  if (!waiting) return std::nullopt;
  return Diagnosis{
      Outlook::kHindered,
      "config",
      "a container cannot be created",
      {waiting->text},
      says(waiting->text, "secret")
          ? "create the Secret that is missing: kubectl create secret generic NAME --from-literal ..."
          : ""};
}

// Claims of the job's pods that are not bound, or do not exist.
std::optional<Diagnosis> claim_problem(const JobObjects& job) {
  for (const Json* pod : current_pods(job)) {
    for (const Json& volume : list_at(*pod, "/spec/volumes")) {
      const std::string claim = text_at(volume, "/persistentVolumeClaim/claimName");
      if (claim.empty() || text_at(*pod, "/status/phase") != "Pending") continue;
      const auto held =
          std::ranges::find_if(job.claims, [&](const Json& each) { return object_name(each) == claim; });
      const bool is_known =
          std::ranges::find(job.not_allowed, "persistentvolumeclaims") == job.not_allowed.end();
      if (held == job.claims.end() && is_known)
        return Diagnosis{Outlook::kHindered,
                         "volume",
                         fmt::format("the volume claim {} does not exist", claim),
                         {},
                         "create the PersistentVolumeClaim: tessera deploy runtime writes one"};
      if (held == job.claims.end() || text_at(*held, "/status/phase") == "Bound") continue;
      const Json& event =
          event_of(job, claim, [](const std::string& reason) { return is_one_of(reason, kClaimReasons); });
      // WaitForFirstConsumer: the claim is bound once the pod has a node.
      if (event.is_null() && text_at(*held, "/status/phase") == "Pending" &&
          !says(text_at(condition(*pod, "PodScheduled"), "/message"), "unbound immediate")) {
        continue;
      }
      Diagnosis found = {
          Outlook::kHindered,
          "volume",
          fmt::format("the volume claim {} is not bound ({})", claim, text_at(*held, "/status/phase")),
          {},
          "it needs a PersistentVolume, or a StorageClass with a provisioner"};
      if (!event.is_null()) found.details.push_back(message_line(text_at(event, "/message")));
      // A volume with the policy Retain outlives its claim, and no other claim can have it.
      if (const std::string volume_name = text_at(*held, "/spec/volumeName");
          says(text_at(event, "/message"), "bound to a different claim") && !volume_name.empty()) {
        found.advice = fmt::format(
            "if no claim has that volume any more (Released): kubectl delete persistentvolume {}, which "
            "leaves its files, and apply again what tessera deploy runtime writes",
            volume_name);
      }
      return found;
    }
  }
  return std::nullopt;
}

// Whether the last attempt to mount was within the pod's first minute on its node: the next one often
// succeeds, once the kubelet's caches have the Secret, or the driver its socket. Attempts that fail are
// repeated, at least every two minutes.
bool may_pass(const Json& pod, const Json& event) {
  constexpr double kSeconds = 60;
  const std::string scheduled = text_at(condition(pod, "PodScheduled"), "/lastTransitionTime");
  const auto age = seconds_between(scheduled, time_of(event));
  return age && *age < kSeconds;
}

std::optional<Diagnosis> mount_problem(const JobObjects& job) {
  for (const Json* pod : current_pods(job)) {
    if (text_at(*pod, "/status/phase") != "Pending") continue;
    const Json& event = event_of(job, object_name(*pod),
                                 [](const std::string& reason) { return is_one_of(reason, kVolumeReasons); });
    if (event.is_null() || may_pass(*pod, event)) continue;
    return Diagnosis{
        Outlook::kHindered,
        "volume",
        "a volume cannot be mounted",
        {fmt::format("pod {}: {}: {}", object_name(*pod), text_at(event, "/reason"),
                     message_line(text_at(event, "/message")))},
        "tessera doctor --storage DIR on a node says more; a missing Secret or ConfigMap looks the same"};
  }
  return std::nullopt;
}

// No node for a pod: either one is on its way, or none will be added.
std::optional<Diagnosis> node_problem(const JobObjects& job) {
  int64_t num_waiting = 0;
  const Json* first = nullptr;
  for (const Json* pod : current_pods(job)) {
    const std::string reason = text_at(condition(*pod, "PodScheduled"), "/reason");
    if (is_true(*pod, "PodScheduled") || (reason != "Unschedulable" && reason != "SchedulingGated")) continue;
    ++num_waiting;
    if (first == nullptr) first = pod;
  }
  if (first == nullptr) return std::nullopt;
  const Json& scheduled = condition(*first, "PodScheduled");
  const std::string message = message_line(text_at(scheduled, "/message"));
  Diagnosis found = {Outlook::kWaiting,
                     "no_nodes",
                     fmt::format("waiting for nodes: {} of {} without one", num_waiting,
                                 count_of(std::max(count_pods(job).wanted, num_waiting), "pod")),
                     {fmt::format("scheduler: {}", message)},
                     ""};
  if (text_at(scheduled, "/reason") == "SchedulingGated") {
    found.details = {fmt::format("pod {} has a scheduling gate: {}", object_name(*first), message)};
    return found;
  }
  // The last word of Karpenter or the Cluster Autoscaler.
  const auto said = std::ranges::find_if(job.events, [&](const Json& event) {
    const std::string reason = text_at(event, "/reason");
    return text_at(event, "/involvedObject/name") == object_name(*first) &&
           (reason == "Nominated" || reason == "TriggeredScaleUp" || reason == "NotTriggerScaleUp" ||
            (reason == "FailedScheduling" && source_of(event) == "karpenter"));
  });
  if (said == job.events.end()) {
    found.advice = "neither Karpenter nor an autoscaler has announced one: without them no node is added";
    return found;
  }
  found.details.push_back(fmt::format("{}: {}", source_of(*said), message_line(text_at(*said, "/message"))));
  const std::string reason = text_at(*said, "/reason");
  if (reason == "Nominated" || reason == "TriggeredScaleUp") {
    found.advice = "a new node takes a few minutes";
  } else {
    found.outlook = Outlook::kHindered;
    found.state = "unschedulable";
    found.headline = "no node can be provisioned for it";
    found.advice =
        "compare node selector, tolerations, CPU and memory of the job with the NodePool's requirements, "
        "taints and limits";
  }
  return found;
}

// A container that failed and is restarted.
std::optional<Diagnosis> crash_problem(const JobObjects& job) {
  const auto first = first_failure(job);
  if (!first) return std::nullopt;
  const PodCounts counts = count_pods(job);
  if (counts.all_run() && counts.failed == 0) return std::nullopt;
  const bool backs_off = waiting_for(job, std::array{"CrashLoopBackOff"}).has_value();
  const int64_t restarts = num_restarts(job);
  Diagnosis found = {backs_off ? Outlook::kHindered : Outlook::kWaiting,
                     "restarting",
                     backs_off ? "keeps failing" : "failed, and is about to restart",
                     {first->text},
                     ""};
  if (restarts > 0) {
    const int64_t counted = number_at(job.jobset, "/status/restartsCountTowardsMax");
    const int64_t limit = number_at(job.jobset, "/spec/failurePolicy/maxRestarts", -1);
    found.details.push_back(limit < 0 ? fmt::format("restarts so far: {}", restarts)
                                      : fmt::format("restarts so far: {}, of which {} count, of at most {}",
                                                    restarts, counted, limit));
  }
  return found;
}

// Something is under way.
std::optional<Diagnosis> still_starting(const JobObjects& job) {
  const PodCounts counts = count_pods(job);
  if (counts.pending == 0) return std::nullopt;
  Diagnosis found = {Outlook::kWaiting, "starting", "", {}, ""};
  found.headline = fmt::format("starting: {} of {} run", counts.running,
                               count_of(std::max(counts.wanted, counts.pending), "pod"));
  for (const Json* pod : current_pods(job)) {
    if (text_at(*pod, "/status/phase") != "Pending") continue;
    const Json& event = event_of(job, object_name(*pod), [](const std::string&) { return true; });
    for (const Json& status : list_at(*pod, "/status/initContainerStatuses")) {
      if (!status.contains("/state/running"_json_pointer)) continue;
      found.details.push_back(
          fmt::format("pod {}: init container {} runs", object_name(*pod), text_at(status, "/name")));
      return found;
    }
    if (!event.is_null())
      found.details.push_back(
          fmt::format("pod {}: {}", object_name(*pod), message_line(text_at(event, "/message"))));
    return found;
  }
  return found;
}

}  // namespace

std::optional<Diagnosis> pods_not_running(const JobObjects& job) {
  for (const auto step : {image_problem, config_problem, claim_problem, node_problem, mount_problem,
                          crash_problem, still_starting}) {
    if (std::optional<Diagnosis> found = step(job)) return found;
  }
  return std::nullopt;
}

}  // namespace tessera
