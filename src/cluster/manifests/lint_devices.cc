// Resources that device plugins offer: NVIDIA cards, EFA interfaces.
#include <algorithm>
#include <cmath>

#include "cluster/manifests/allocatable.h"
#include "cluster/manifests/lint_rules.h"

namespace tessera {
namespace {

// A container, or the trainer block of a TrainJob, with the pod that it will be part of.
struct DeviceUser {
  const Manifest* manifest = nullptr;
  std::string path;
  const Value* container = nullptr;  // with command and args
  const Value* resources = nullptr;  // with requests and limits; nullptr: none
  const Value* pod = nullptr;        // with spec; nullptr: in a runtime that is not known
};

double limit_of(const DeviceUser& user, std::string_view resource) {
  const Value* const limits = user.resources == nullptr ? nullptr : user.resources->find("limits");
  return quantity(limits == nullptr ? nullptr : limits->find(resource)).value_or(0);
}

// The API server refuses these.
void lint_quantities(const DeviceUser& user, LintReport* report) {
  if (user.resources == nullptr) return;
  const Value* const requests = user.resources->find("requests");
  const Value* const limits = user.resources->find("limits");
  const auto check = [&](const Value* some, const Value* others, std::string_view lacking) {
    if (some == nullptr || some->object() == nullptr) return;
    for (const Value::Field& field : *some->object()) {
      if (field.name.find('/') == std::string::npos) continue;
      const auto value = quantity(&field.value);
      const auto other = quantity(others == nullptr ? nullptr : others->find(field.name));
      if (!other && lacking == "limit") {
        report->add(*user.manifest, user.path, "{} has no limit, which a device needs", field.name);
      } else if (other && lacking == "limit" && value != other) {
        report->add(*user.manifest, user.path,
                    "request and limit of {} differ, which a device does not allow", field.name);
      } else if (lacking == "request" && (!value || *value != std::floor(*value))) {
        report->add(*user.manifest, user.path, "expected a whole number of {}", field.name);
      }
    }
  };
  check(requests, limits, "limit");
  check(limits, requests, "request");
}

bool has_shared_memory(const DeviceUser& user) {
  for (const Value& container : list_at(*user.pod, "spec.containers")) {
    for (const Value& mount : list_at(container, "volumeMounts")) {
      if (text_at(mount, "mountPath") != "/dev/shm") continue;
      for (const Value& volume : list_at(*user.pod, "spec.volumes")) {
        if (text_at(volume, "name") == text_at(mount, "name"))
          return text_at(volume, "emptyDir.medium") == "Memory";
      }
    }
  }
  return false;
}

bool runs_on_card(const Value& container) {
  return std::ranges::any_of(list_at(container, "args"), [](const Value& word) {
    return word.string() != nullptr && *word.string() == "--device=cuda";
  });
}

void lint_user(const DeviceUser& user, LintReport* report) {
  lint_quantities(user, report);
  const double num_cards = limit_of(user, kCardResource);
  if (num_cards == 0 && runs_on_card(*user.container)) {
    report->add(*user.manifest, user.path, "runs with --device=cuda and asks for no {}", kCardResource);
  }
  if (num_cards == 0 || user.pod == nullptr) return;
  const Value taint(Value::Object{{"key", kCardResource}, {"value", "true"}, {"effect", "NoSchedule"}});
  if (!tolerates(list_at(*user.pod, "spec.tolerations"), taint)) {
    report->add(*user.manifest, user.path,
                "asks for {} and does not tolerate the taint of this name, which nodes with cards have",
                kCardResource);
  }
  if (num_cards > 1 && !has_shared_memory(user)) {
    report->add(*user.manifest, user.path,
                "asks for {} cards and has no volume in memory at /dev/shm: NCCL finds 64 MiB there",
                num_cards);
  }
}

}  // namespace

void lint_devices(LintReport* report) {
  for (const Manifest& each : report->manifests()) {
    for (const PodTemplate& pod : pod_templates(each)) {
      for (const char* list : {"initContainers", "containers"}) {
        for (const Value& container : list_at(*pod.value, std::string("spec.") + list)) {
          lint_user({&each, fmt::format("{}.spec.{} '{}'", pod.path, list, text_at(container, "name")),
                     &container, value_at(container, "resources"), pod.value},
                    report);
        }
      }
    }
    if (each.kind() != "TrainJob") continue;
    const Value* const trainer = value_at(each.body, "spec.trainer");
    if (trainer == nullptr) continue;
    const Manifest* const runtime = runtime_of(each, *report);
    const std::vector<PodTemplate> pods =
        runtime == nullptr ? std::vector<PodTemplate>() : pod_templates(*runtime);
    lint_user({&each, "spec.trainer", trainer, value_at(*trainer, "resourcesPerNode"),
               pods.empty() ? nullptr : pods.front().value},
              report);
  }
}

}  // namespace tessera
