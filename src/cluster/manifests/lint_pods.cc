// Names, and what holds for a pod of any kind.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/text.h"
#include "cluster/manifests/lint_rules.h"
#include "cluster/manifests/names.h"

namespace tessera {
namespace {

// Their names are host names, or values of labels.
constexpr std::string_view kShortNamed[] = {"Job", "Namespace", "Service"};

// value_at() takes dots for steps, which names of labels have.
const Value* label(const Value& pod, std::string_view name) {
  const Value* const labels = value_at(pod, "metadata.labels");
  return labels == nullptr ? nullptr : labels->find(name);
}

void lint_volumes(const PodTemplate& pod, const Value& container, const std::set<std::string>& volumes,
                  const std::string& path, LintReport* report) {
  std::set<std::string> places;
  for (const Value& mount : list_at(container, "volumeMounts")) {
    const std::string name = text_at(mount, "name"), place = text_at(mount, "mountPath");
    if (!volumes.contains(name))
      report->add(*pod.manifest, path, "mounts the volume '{}', which the pod does not have", name);
    if (!places.insert(place).second) report->add(*pod.manifest, path, "mounts two volumes at {}", place);
  }
}

void lint_resources(const PodTemplate& pod, const Value& container, const std::string& path,
                    LintReport* report) {
  const Value* const requests = value_at(container, "resources.requests");
  const Value* const limits = value_at(container, "resources.limits");
  if (requests == nullptr && limits == nullptr) return;  // a TrainJob gives them
  for (const char* what : {"cpu", "memory"}) {
    const auto limit = quantity(limits == nullptr ? nullptr : limits->find(what));
    // Kubernetes takes a limit for a request that is not there.
    const auto request =
        requests == nullptr || requests->find(what) == nullptr ? limit : quantity(requests->find(what));
    if (!limit) {
      report->add(*pod.manifest, path, "has no limit of {}, so the pod is not Guaranteed", what);
    } else if (request != limit) {
      report->add(*pod.manifest, path, "requests and limits of {} differ, so the pod is not Guaranteed",
                  what);
    } else if (std::string_view(what) == "cpu" && *limit != std::floor(*limit)) {
      report->add(*pod.manifest, path, "{} CPUs: a static CPU manager gives cores for whole ones only",
                  *limit);
    }
  }
}

void lint_security(const PodTemplate& pod, const Value& container, const std::string& path,
                   LintReport* report) {
  const auto is = [&](const Value& at, std::string_view where, bool wanted) {
    const Value* const value = value_at(at, where);
    return value != nullptr && value->boolean() != nullptr && *value->boolean() == wanted;
  };
  if (!is(*pod.value, "spec.securityContext.runAsNonRoot", true) &&
      !is(container, "securityContext.runAsNonRoot", true)) {
    report->add(*pod.manifest, path, "may run as root: set runAsNonRoot");
  }
  if (!is(container, "securityContext.allowPrivilegeEscalation", false)) {
    report->add(*pod.manifest, path, "may gain privileges: set allowPrivilegeEscalation to false");
  }
  if (!is(container, "securityContext.readOnlyRootFilesystem", true)) {
    report->add(*pod.manifest, path, "writes to its root file system: set readOnlyRootFilesystem");
  }
  const Value::List& dropped = list_at(container, "securityContext.capabilities.drop");
  if (std::ranges::find(dropped, Value("ALL")) == dropped.end()) {
    report->add(*pod.manifest, path, "keeps capabilities: drop ALL");
  }
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

void lint_ports(const PodTemplate& pod, LintReport* report) {
  std::set<std::string> names;
  std::set<int64_t> numbers;
  for (const Value& container : list_at(*pod.value, "spec.containers")) {
    std::set<std::string> own;
    for (const Value& port : list_at(container, "ports")) {
      const std::string name = text_at(port, "name");
      own.insert(name);
      if (!name.empty() && !names.insert(name).second) {
        report->add(*pod.manifest, pod.path, "two ports are called '{}'", name);
      }
      if (name.size() > 15)
        report->add(*pod.manifest, pod.path, "the port name '{}' has more than 15 characters", name);
      const Value* const number = port.find("containerPort");
      if (number != nullptr && number->integer() != nullptr && !numbers.insert(*number->integer()).second) {
        report->add(*pod.manifest, pod.path, "port {} appears twice", *number->integer());
      }
    }
    for (const char* probe : {"startupProbe", "livenessProbe", "readinessProbe"}) {
      const std::string port = text_at(container, fmt::format("{}.httpGet.port", probe));
      if (!port.empty() && port.find_first_not_of("0123456789") != std::string::npos && !own.contains(port)) {
        report->add(*pod.manifest, pod.path, "{} asks port '{}', which the container does not have", probe,
                    port);
      }
    }
  }
}

void lint_pod(const PodTemplate& pod, LintReport* report) {
  std::set<std::string> volumes, used;
  for (const Value& volume : list_at(*pod.value, "spec.volumes")) volumes.insert(text_at(volume, "name"));
  const Value* const name = label(*pod.value, "app.kubernetes.io/name");
  const bool is_ours = name != nullptr && *name == Value("tessera") &&
                       label(*pod.value, "app.kubernetes.io/component") != nullptr &&
                       *label(*pod.value, "app.kubernetes.io/component") == Value("training");
  std::set<std::string> names;
  for (const char* list : {"initContainers", "containers"}) {
    for (const Value& container : list_at(*pod.value, std::string("spec.") + list)) {
      const std::string path = fmt::format("{}.spec.{} '{}'", pod.path, list, text_at(container, "name"));
      if (!names.insert(text_at(container, "name")).second)
        report->add(*pod.manifest, path, "a second container of this name");
      lint_volumes(pod, container, volumes, path, report);
      if (!is_ours) continue;
      lint_resources(pod, container, path, report);
      lint_security(pod, container, path, report);
    }
  }
  lint_memory_volumes(pod, report);
  lint_ports(pod, report);
}

}  // namespace

void lint_names(LintReport* report) {
  std::set<std::string> seen;
  for (const Manifest& each : report->manifests()) {
    if (each.body.object() == nullptr || each.api().empty() || each.kind().empty()) {
      report->add(each, "apiVersion and kind", "expected an object of Kubernetes, found {}",
                  each.body.kind_name());
      continue;
    }
    if (each.kind() == "ClusterConfig") continue;  // a file of eksctl, not an object of a cluster
    if (each.name().empty()) {
      report->add(each, "metadata.name", "is missing");
      continue;
    }
    try {
      check_object_name("metadata.name", each.name());
      if (!each.name_space().empty()) check_label("metadata.namespace", each.name_space());
      if (each.name().size() > kMaxLabelLength &&
          std::ranges::find(kShortNamed, each.kind()) != std::end(kShortNamed)) {
        report->add(each, "metadata.name", "has {} characters; that of a {} has at most {}",
                    each.name().size(), each.kind(), kMaxLabelLength);
      }
    } catch (const Error& error) {
      report->add(each, "metadata", "{}", std::string_view(error.what()).substr(2));
    }
    if (!seen.insert(fmt::format("{} {}/{}/{}", each.api(), each.kind(), each.name_space(), each.name()))
             .second) {
      report->add(each, "metadata.name", "appears twice");
    }
  }
}

void lint_pods(LintReport* report) {
  for (const Manifest& each : report->manifests()) {
    for (const PodTemplate& pod : pod_templates(each)) lint_pod(pod, report);
  }
}

}  // namespace tessera
