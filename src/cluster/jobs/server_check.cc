#include "cluster/jobs/server_check.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "cluster/manifests/lint_rules.h"

namespace tessera {
namespace {

constexpr size_t kMaxLineChars = 500;

bool is_without_namespace(const std::string& kind) {
  return kind == "ClusterTrainingRuntime" || kind == "PriorityClass";
}

// The full name: others have kinds of the same name.
std::string resource_of(const std::string& kind) {
  if (kind == "LocalQueue") return "localqueues.kueue.x-k8s.io";
  if (kind == "ClusterTrainingRuntime") return "clustertrainingruntimes.trainer.kubeflow.org";
  if (kind == "PriorityClass") return "priorityclasses.scheduling.k8s.io";
  return kind == "Secret" ? "secrets" : "persistentvolumeclaims";
}

std::vector<Reference> references(const LintReport& report) {
  std::vector<Reference> found = pod_references(report);
  for (const Manifest& each : report.manifests()) {
    found.push_back({&each, "metadata.labels", "LocalQueue",
                     text_at(each.body, "metadata.labels.'kueue.x-k8s.io/queue-name'")});
    if (text_at(each.body, "spec.runtimeRef.kind") == "ClusterTrainingRuntime")
      found.push_back(
          {&each, "spec.runtimeRef", "ClusterTrainingRuntime", text_at(each.body, "spec.runtimeRef.name")});
    for (const PodTemplate& pod : pod_templates(each))
      found.push_back({&each, pod.path, "PriorityClass", text_at(*pod.value, "spec.priorityClassName")});
  }
  std::erase_if(found, [&](const Reference& each) {
    return each.name.empty() || each.name.starts_with("system-") ||
           report.find(each.kind, each.name) != nullptr;
  });
  return found;
}

std::string namespace_of(const Manifest& manifest) {
  return manifest.name_space().empty() ? "default" : manifest.name_space();
}

void check_references(const Kubectl& kubectl, const LintReport& report, ServerCheck* out) {
  const std::vector<Reference> wanted = references(report);
  std::vector<std::vector<std::string>> commands;
  for (const Reference& each : wanted) {
    commands.push_back({"get", resource_of(each.kind), each.name, "--ignore-not-found", "--output=name",
                        "--request-timeout=30s"});
    if (!is_without_namespace(each.kind))
      commands.back().insert(commands.back().end(), {"--namespace", namespace_of(*each.manifest)});
  }
  const std::vector<KubectlAnswer> answers = kubectl.run(commands);
  std::set<std::string> not_allowed;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const NoAnswer problem = problem_of(answers[i]);
    if (problem == NoAnswer::kForbidden) {
      not_allowed.insert(wanted[i].kind);
    } else if (problem == NoAnswer::kNoKind || answers[i].out.find_first_not_of(" \n") == std::string::npos) {
      const std::string where =
          is_without_namespace(wanted[i].kind)
              ? "the cluster"
              : fmt::format("the cluster's namespace {}", namespace_of(*wanted[i].manifest));
      out->findings.push_back(printable(fmt::format("{}: {}: {} has no {} '{}'", wanted[i].manifest->title(),
                                                    wanted[i].path, where, wanted[i].kind, wanted[i].name),
                                        kMaxLineChars));
    }
  }
  for (const std::string& kind : not_allowed)
    out->notes.push_back(fmt::format("this user may not see whether a {} is there", kind));
}

// Whether the server lacks what another of the documents brings: a first apply would have made it.
bool is_brought(const std::string& line, const std::vector<Manifest>& manifests) {
  return std::ranges::any_of(manifests, [&](const Manifest& each) {
    const std::string kind = each.kind();
    return (kind == "Namespace" || kind.ends_with("TrainingRuntime")) &&
           line.find(fmt::format("\"{}\" not found", each.name())) != std::string::npos;
  });
}

}  // namespace

ServerCheck check_on_server(const Kubectl& kubectl, const std::string& text,
                            const std::vector<Manifest>& manifests) {
  ServerCheck out;
  const KubectlAnswer answer =
      kubectl.run_with(text, {"apply", "--dry-run=server", "--server-side", "--force-conflicts",
                              "--validate=strict", "--filename=-", "--request-timeout=30s"});
  check_connection(answer);
  for (const std::string& each : split(answer.err, '\n')) {
    const std::string line = printable(each, kMaxLineChars);
    if (line.find_first_not_of(' ') == std::string::npos) continue;
    if (line.starts_with("Warning: ")) {
      out.notes.push_back("the cluster warns: " + line.substr(9));
    } else if (answer.exit_code != 0 && is_brought(each, manifests)) {
      out.notes.push_back("not checked by the cluster, which lacks what is applied with it: " + line);
    } else if (answer.exit_code != 0) {
      out.findings.push_back("the cluster: " + line);
    }
  }
  check_references(kubectl, LintReport(manifests), &out);
  // The same is said of every document of a namespace that is not there.
  for (std::vector<std::string>* const list : {&out.findings, &out.notes}) {
    std::set<std::string> seen;
    std::erase_if(*list, [&](const std::string& line) { return !seen.insert(line).second; });
  }
  return out;
}

}  // namespace tessera
