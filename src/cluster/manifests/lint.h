// Rules for manifests that a cluster's own dry run (`kubectl apply --dry-run=server`) does not know: what the
// launcher and the ranks rely on, what controllers read by convention, and whether jobs, queues and nodes fit
// together. Sources: Kubeflow Trainer v2.1 to v2.3, JobSet 0.10 to 0.12, Kueue 0.15, Karpenter 1.8,
// Kubernetes 1.34. docs/kubernetes.md lists the rules.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cluster/manifests/manifest.h"

namespace tessera {

// Returns a line for each broken rule, in the order of the documents: "job.yaml:12: TrainJob llama:
// spec.trainer: ...". References are resolved only among the given documents; a reference to something that
// none of them defines is left to the cluster.
std::vector<std::string> lint_manifests(const std::vector<Manifest>& manifests);

// Whether there are rules for its kind, as far as kinds that `tessera deploy` writes or refers to are
// concerned.
bool has_rules(const Manifest& manifest);

// Parses and checks manifests; throws Error(`code`) with the first finding, and how many more there are.
void check_manifests(std::string_view text, const std::string& origin, ExitCode code);

}  // namespace tessera
