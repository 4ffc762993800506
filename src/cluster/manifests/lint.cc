#include "cluster/manifests/lint.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "base/embedded_text.h"
#include "base/text.h"
#include "cluster/manifests/lint_rules.h"

namespace tessera {

std::span<const EmbeddedText> cluster_tables();  // cluster/tables/*.tsv

namespace {

// The API group: "batch" of "batch/v1", "" (the core group) of "v1".
std::string group_of(const std::string& api) {
  const size_t slash = api.find('/');
  return slash == std::string::npos ? "" : api.substr(0, slash);
}

void add_job_templates(const Manifest& manifest, const std::string& path, std::vector<PodTemplate>* out) {
  const Value::List& jobs = list_at(manifest.body, path + ".replicatedJobs");
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Value* const job = value_at(jobs[i], "template.spec");
    if (job == nullptr || job->find("template") == nullptr) continue;
    out->push_back({&manifest, job->find("template"), job,
                    fmt::format("{}.replicatedJobs.{}.template.spec.template", path, i)});
  }
}

}  // namespace

std::vector<const Manifest*> LintReport::of_kind(std::string_view kind) const {
  std::vector<const Manifest*> found;
  for (const Manifest& each : manifests_) {
    if (each.kind() == kind) found.push_back(&each);
  }
  return found;
}

const Manifest* LintReport::find(std::string_view kind, const std::string& name) const {
  for (const Manifest* const each : of_kind(kind)) {
    if (each->name() == name) return each;
  }
  return nullptr;
}

std::vector<PodTemplate> pod_templates(const Manifest& manifest) {
  std::vector<PodTemplate> found;
  const std::string kind = manifest.kind();
  const auto add = [&](const std::string& path, const std::string& job) {
    const Value* const value = value_at(manifest.body, path);
    if (value != nullptr)
      found.push_back({&manifest, value, job.empty() ? nullptr : value_at(manifest.body, job), path});
  };
  if (kind == "Pod") {
    add("", "");
  } else if (kind == "Deployment" || kind == "DaemonSet" || kind == "StatefulSet") {
    add("spec.template", "");
  } else if (kind == "Job") {
    add("spec.template", "spec");
  } else if (kind == "CronJob") {
    add("spec.jobTemplate.spec.template", "spec.jobTemplate.spec");
  } else if (kind == "JobSet") {
    add_job_templates(manifest, "spec", &found);
  } else if (kind == "ClusterTrainingRuntime" || kind == "TrainingRuntime") {
    add_job_templates(manifest, "spec.template.spec", &found);
  } else if (kind == "PyTorchJob") {
    for (const char* replica : {"Master", "Worker"})
      add(fmt::format("spec.pytorchReplicaSpecs.{}.template", replica), "");
  }
  return found;
}

bool has_labels(const Value* labels, const Value* match_labels) {
  if (match_labels == nullptr || match_labels->object() == nullptr) return true;
  return std::ranges::all_of(*match_labels->object(), [&](const Value::Field& field) {
    const Value* const found = labels == nullptr ? nullptr : labels->find(field.name);
    return found != nullptr && *found == field.value;
  });
}

bool tolerates(const Value::List& tolerations, const Value& taint) {
  return std::ranges::any_of(tolerations, [&](const Value& each) {
    const std::string key = text_at(each, "key"), effect = text_at(each, "effect");
    if (!key.empty() && key != text_at(taint, "key")) return false;
    if (!effect.empty() && effect != text_at(taint, "effect")) return false;
    return text_at(each, "operator") == "Exists" || text_at(each, "value") == text_at(taint, "value");
  });
}

bool has_rules(const Manifest& manifest) {
  static const auto kKnownKinds = read_cells("kinds", text_named(cluster_tables(), "kinds"), 2);
  return std::ranges::any_of(kKnownKinds, [&](const auto& known) {
    return manifest.kind() == known[0] && group_of(manifest.api()) == known[1];
  });
}

std::vector<std::string> lint_manifests(const std::vector<Manifest>& manifests) {
  LintReport all(manifests);
  std::set<std::string> seen;
  for (const Manifest& each : manifests) {
    if (each.body.object() == nullptr || each.api().empty() || each.kind().empty()) {
      all.add(each, "apiVersion and kind", "expected an object of Kubernetes, found {}",
              each.body.kind_name());
    } else if (!seen.insert(
                        fmt::format("{} {}/{}/{}", each.api(), each.kind(), each.name_space(), each.name()))
                    .second) {
      all.add(each, "metadata.name", "appears twice");
    }
  }
  std::vector<std::string> findings = all.take();
  // Other APIs have kinds of the same names.
  std::vector<Manifest> known;
  std::ranges::copy_if(manifests, std::back_inserter(known), has_rules);
  LintReport report(known);
  for (const auto rule : {lint_pods, lint_jobs, lint_queues, lint_nodes, lint_references}) {
    rule(&report);
  }
  for (std::string& finding : report.take()) findings.push_back(std::move(finding));
  return findings;
}

void check_manifests(std::string_view text, const std::string& origin, ExitCode code) {
  const std::vector<std::string> findings = lint_manifests(parse_manifests(text, origin));
  if (findings.empty()) return;
  fail(
      code, "{}{}", findings[0],
      findings.size() == 1 ? "" : fmt::format(" ({} in all)", format_count(std::ssize(findings), "finding")));
}

}  // namespace tessera
