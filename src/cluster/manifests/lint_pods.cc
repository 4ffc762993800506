// Checks training pods, whoever creates them: resources, memory in volumes, NVIDIA cards.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "cluster/manifests/allocatable.h"
#include "cluster/manifests/job_manifest.h"
#include "cluster/manifests/lint_rules.h"

namespace tessera {
namespace {

// A container, or the trainer block of a TrainJob, with the pod that it will be part of.
struct PodContainer {
  const Manifest* manifest = nullptr;
  std::string path;
  const Value* container = nullptr;  // with command and args
  const Value* resources = nullptr;  // with requests and limits; nullptr: none
  const Value* pod = nullptr;        // with spec; nullptr: in a runtime that is not known
  bool is_training = false;
};

bool is_training_pod(const Value& pod) {
  return text_at(pod, "metadata.labels.'app.kubernetes.io/name'") == "tessera" &&
         text_at(pod, "metadata.labels.'app.kubernetes.io/component'") == "training";
}

// Every container of the documents, and the trainer of every TrainJob.
std::vector<PodContainer> pod_containers(const LintReport& report) {
  std::vector<PodContainer> found;
  for (const Manifest& each : report.manifests()) {
    for (const PodTemplate& pod : pod_templates(each)) {
      for (const char* list : {"initContainers", "containers"}) {
        for (const Value& container : list_at(*pod.value, std::string("spec.") + list)) {
          const Value* const resources = value_at(container, "resources");
          const bool has_any = resources != nullptr && (resources->find("requests") != nullptr ||
                                                        resources->find("limits") != nullptr);
          found.push_back({&each, fmt::format("{}.spec.{} '{}'", pod.path, list, text_at(container, "name")),
                           &container, resources, pod.value,
                           // Without any, a TrainJob gives them.
                           has_any && is_training_pod(*pod.value)});
        }
      }
    }
    const Value* const trainer = each.kind() == "TrainJob" ? value_at(each.body, "spec.trainer") : nullptr;
    if (trainer == nullptr || trainer->object() == nullptr) continue;
    const Manifest* const runtime = runtime_of(each, report);
    const std::vector<PodTemplate> pods =
        runtime == nullptr ? std::vector<PodTemplate>() : pod_templates(*runtime);
    found.push_back({&each, "spec.trainer", trainer, value_at(*trainer, "resourcesPerNode"),
                     pods.empty() ? nullptr : pods.front().value, /*is_training=*/true});
  }
  return found;
}

const Value* amount_of(const PodContainer& user, const char* list, std::string_view resource) {
  return user.resources == nullptr ? nullptr
                                   : value_at(*user.resources, fmt::format("{}.'{}'", list, resource));
}

double num_cards_of(const PodContainer& user) {
  return quantity(amount_of(user, "limits", kCardResource)).value_or(0);
}

// Pods keep their cores and their memory only if they are Guaranteed.
void lint_guarantee(const PodContainer& user, LintReport* report) {
  for (const char* what : {"cpu", "memory"}) {
    const auto limit = quantity(amount_of(user, "limits", what));
    // Kubernetes takes a limit for a request that is not there.
    const Value* const request = amount_of(user, "requests", what);
    if (!limit) {
      report->add(*user.manifest, user.path, "has no limit of {}, so the pod is not Guaranteed", what);
    } else if (request != nullptr && quantity(request) != limit) {
      report->add(*user.manifest, user.path, "requests and limits of {} differ, so the pod is not Guaranteed",
                  what);
    } else if (std::string_view(what) == "cpu" && *limit != std::floor(*limit)) {
      report->add(*user.manifest, user.path, "{} CPUs: a static CPU manager gives cores for whole ones only",
                  *limit);
    }
  }
}

// The API server refuses such a pod, which it first sees when the controller of a job makes it.
void lint_device_amounts(const PodContainer& user, LintReport* report) {
  for (const char* device : {kCardResource, kEfaResource}) {
    const Value* const request = amount_of(user, "requests", device);
    const auto limit = quantity(amount_of(user, "limits", device));
    if (request != nullptr && !limit) {
      report->add(*user.manifest, user.path, "{} has no limit, which a device needs", device);
    } else if (request != nullptr && quantity(request) != limit) {
      report->add(*user.manifest, user.path, "request and limit of {} differ, which a device does not allow",
                  device);
    } else if (limit && *limit != std::floor(*limit)) {
      report->add(*user.manifest, user.path, "expected a whole number of {}", device);
    }
  }
}

bool has_shared_memory(const Value& pod) {
  for (const Value& container : list_at(pod, "spec.containers")) {
    for (const Value& mount : list_at(container, "volumeMounts")) {
      if (text_at(mount, "mountPath") != "/dev/shm") continue;
      for (const Value& volume : list_at(pod, "spec.volumes")) {
        if (text_at(volume, "name") == text_at(mount, "name"))
          return text_at(volume, "emptyDir.medium") == "Memory";
      }
    }
  }
  return false;
}

void lint_cards(const PodContainer& user, LintReport* report) {
  const double num_cards = num_cards_of(user);
  const bool runs_on_card = std::ranges::any_of(list_at(*user.container, "args"), [](const Value& word) {
    return word.string() != nullptr && *word.string() == "--device=cuda";
  });
  if (num_cards == 0 && runs_on_card) {
    report->add(*user.manifest, user.path, "runs with --device=cuda and asks for no {}", kCardResource);
  }
  if (num_cards == 0 || user.pod == nullptr) return;
  const Value taint(Value::Object{{"key", kCardResource}, {"value", "true"}, {"effect", "NoSchedule"}});
  if (!tolerates(list_at(*user.pod, "spec.tolerations"), taint)) {
    report->add(*user.manifest, user.path,
                "asks for {} and does not tolerate the taint of this name, which nodes with cards have",
                kCardResource);
  }
  if (num_cards > 1 && !has_shared_memory(*user.pod)) {
    report->add(*user.manifest, user.path,
                "asks for {} cards and has no volume in memory at /dev/shm: NCCL finds 64 MiB there",
                num_cards);
  }
}

// Whoever edits the limits of a planned job may take what its plan needs.
void lint_planned_memory(const Manifest& job, LintReport* report) {
  const auto planned = quantity(value_at(job.body, fmt::format("metadata.annotations.'{}'", kPlannedMemory)));
  if (!planned) return;
  const auto check = [&](const std::string& path, const Value* limit_value) {
    const auto limit = quantity(limit_value);
    if (!limit || *limit >= *planned) return;
    report->add(job, path, "has {} of memory, and the run was planned with {}",
                format_bytes(static_cast<int64_t>(*limit)), format_bytes(static_cast<int64_t>(*planned)));
  };
  check("spec.trainer", value_at(job.body, "spec.trainer.resourcesPerNode.limits.memory"));
  for (const PodTemplate& pod : pod_templates(job))
    check(pod.path, value_at(*pod.value, "spec.containers.0.resources.limits.memory"));
}

// Shared memory in volumes counts as memory of the containers.
void lint_memory_volumes(const PodTemplate& pod, LintReport* report) {
  double volumes = 0, limits = 0;
  for (const Value& volume : list_at(*pod.value, "spec.volumes")) {
    if (text_at(volume, "emptyDir.medium") != "Memory") continue;
    const auto size = quantity(value_at(volume, "emptyDir.sizeLimit"));
    if (!size) {
      report->add(*pod.manifest, pod.path, "the volume '{}' is in memory and has no sizeLimit",
                  text_at(volume, "name"));
    } else {
      volumes += *size;
    }
  }
  for (const Value& container : list_at(*pod.value, "spec.containers")) {
    const auto limit = quantity(value_at(container, "resources.limits.memory"));
    if (!limit) return;
    limits += *limit;
  }
  if (volumes > 0 && volumes >= limits) {
    report->add(*pod.manifest, pod.path, "volumes in memory take all of the memory limit");
  }
}

}  // namespace

void lint_pods(LintReport* report) {
  for (const PodContainer& user : pod_containers(*report)) {
    if (user.is_training) lint_guarantee(user, report);
    lint_device_amounts(user, report);
    lint_cards(user, report);
  }
  for (const Manifest& each : report->manifests()) {
    for (const PodTemplate& pod : pod_templates(each)) lint_memory_volumes(pod, report);
    lint_planned_memory(each, report);
  }
}

}  // namespace tessera
