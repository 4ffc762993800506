// What pods need to start: Secrets and claims.
#include "cluster/manifests/lint_rules.h"

namespace tessera {
namespace {

void add(const Manifest& manifest, const std::string& path, const char* kind, const std::string& name,
         std::vector<Reference>* out) {
  if (!name.empty()) out->push_back({&manifest, path, kind, name});
}

bool is_optional(const Value& source) {
  const Value* const optional = value_at(source, "optional");
  return optional != nullptr && *optional == Value(true);
}

void add_variables(const Manifest& manifest, const std::string& path, const Value& container,
                   std::vector<Reference>* out) {
  for (const Value& variable : list_at(container, "env")) {
    const Value* const secret = value_at(variable, "valueFrom.secretKeyRef");
    if (secret != nullptr && !is_optional(*secret))
      add(manifest, path, "Secret", text_at(*secret, "name"), out);
  }
  for (const Value& source : list_at(container, "envFrom")) {
    const Value* const secret = value_at(source, "secretRef");
    if (secret != nullptr && !is_optional(*secret))
      add(manifest, path, "Secret", text_at(*secret, "name"), out);
  }
}

void add_pod(const Manifest& manifest, const std::string& path, const Value& pod,
             std::vector<Reference>* out) {
  for (const Value& volume : list_at(pod, "spec.volumes")) {
    add(manifest, path, "PersistentVolumeClaim", text_at(volume, "persistentVolumeClaim.claimName"), out);
    const Value* const secret = value_at(volume, "secret");
    if (secret != nullptr && !is_optional(*secret))
      add(manifest, path, "Secret", text_at(*secret, "secretName"), out);
  }
  for (const char* list : {"spec.initContainers", "spec.containers"}) {
    for (const Value& container : list_at(pod, list)) add_variables(manifest, path, container, out);
  }
}

}  // namespace

std::vector<Reference> pod_references(const LintReport& report) {
  std::vector<Reference> found;
  for (const Manifest& each : report.manifests()) {
    for (const PodTemplate& pod : pod_templates(each))
      add_pod(each, pod.path.empty() ? "spec" : pod.path, *pod.value, &found);
    for (const PatchedPod& patch : patched_pods(each)) add_pod(each, patch.path, *patch.value, &found);
    if (each.kind() != "TrainJob") continue;
    if (const Value* const trainer = value_at(each.body, "spec.trainer"))
      add_variables(each, "spec.trainer", *trainer, &found);
  }
  return found;
}

}  // namespace tessera
