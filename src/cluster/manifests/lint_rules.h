// The rules of lint.h share these helpers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "cluster/manifests/manifest.h"
#include "cluster/manifests/quantity.h"

namespace tessera {

// The documents, and what was found in them.
class LintReport {
 public:
  explicit LintReport(const std::vector<Manifest>& manifests) : manifests_(manifests) {}

  const std::vector<Manifest>& manifests() const { return manifests_; }
  // All of a kind; with a name, the one of that name, if any.
  std::vector<const Manifest*> of_kind(std::string_view kind) const;
  const Manifest* find(std::string_view kind, const std::string& name) const;
  // A finding if there are some of the kind, and none has the name.
  void expect_one(const Manifest& manifest, std::string_view path, std::string_view kind,
                  const std::string& name) {
    if (!of_kind(kind).empty() && find(kind, name) == nullptr)
      add(manifest, path, "no {} is called '{}'", kind, name);
  }

  template <typename... Args>
  void add(const Manifest& manifest, std::string_view path, fmt::format_string<Args...> format,
           Args&&... args) {
    findings_.push_back(printable(
        fmt::format("{}: {}: {}", manifest.title(), path, fmt::format(format, std::forward<Args>(args)...)),
        500));
  }
  std::vector<std::string> take() { return std::move(findings_); }

 private:
  const std::vector<Manifest>& manifests_;
  std::vector<std::string> findings_;
};

// A pod template and where it is.
struct PodTemplate {
  const Manifest* manifest = nullptr;
  const Value* value = nullptr;  // with metadata and spec
  const Value* job = nullptr;    // the JobSpec around it, if any
  std::string path;
};
std::vector<PodTemplate> pod_templates(const Manifest& manifest);

// The runtime of a TrainJob, if it is among the documents.
const Manifest* runtime_of(const Manifest& train_job, const LintReport& report);
// A TrainJob changes its runtime's pods in this way: by podTemplateOverrides, or by runtimePatches with a pod
// template.
struct PatchedPod {
  const Value* value = nullptr;  // with metadata and spec
  std::string path;
};
std::vector<PatchedPod> patched_pods(const Manifest& train_job);

// Something that a document needs in its namespace, or in the cluster.
struct Reference {
  const Manifest* manifest = nullptr;
  std::string path;  // of the field, or of what it is in
  std::string kind, name;
};
// The Secrets and claims that pods cannot start without.
std::vector<Reference> pod_references(const LintReport& report);

// Whether the labels (an object) have all of those of a selector's matchLabels.
bool has_labels(const Value* labels, const Value* match_labels);
// Whether one of the tolerations tolerates a taint of NodePool, ResourceFlavor or node.
bool tolerates(const Value::List& tolerations, const Value& taint);

void lint_pods(LintReport* report);
void lint_jobs(LintReport* report);
void lint_queues(LintReport* report);
void lint_nodes(LintReport* report);
void lint_references(LintReport* report);

}  // namespace tessera
