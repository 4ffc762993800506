// Tests what `tessera deploy lint` reports about jobs on NVIDIA cards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cluster/manifests/allocatable.h"
#include "cluster/manifests/job_manifest.h"
#include "cluster/manifests/lint.h"

namespace tessera {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kCardCluster = R"(apiVersion: karpenter.sh/v1
kind: NodePool
metadata:
  name: gpu
spec:
  template:
    metadata:
      labels:
        nodeType: gpu
    spec:
      nodeClassRef:
        group: karpenter.k8s.aws
        kind: EC2NodeClass
        name: gpu
      taints:
        - key: nvidia.com/gpu
          value: "true"
          effect: NoSchedule
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata:
  name: tessera-gpu
spec:
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [cpu, memory, nvidia.com/gpu]
      flavors:
        - name: gpu
          resources:
            - name: cpu
              nominalQuota: 62
            - name: memory
              nominalQuota: 500Gi
            - name: nvidia.com/gpu
              nominalQuota: 4
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata:
  name: training-gpu
  namespace: training
spec:
  clusterQueue: tessera-gpu
)";

// Two cards in a pod: what a run can have once its ranks share a node's cards.
std::string card_job_of(JobKind kind) {
  JobSettings job;
  job.pod.image = "tessera:1";
  job.pod.on_card = true;
  job.pod.needs_amx = false;
  job.pod.runtime = kCardNodes.runtime;
  job.pod.node_check = true;
  job.kind = kind;
  job.name = "small";
  job.size = {62, int64_t{400} << 30};
  job.num_cards = 2;
  job.grace = grace_periods(1'000'000'000, 500e6, 1, false);
  job.pod.pod_grace_s = job.grace.pod_s;
  job.train_arguments = {"--device=cuda"};
  job.queue = kCardNodes.queue;
  job.about = {"A job."};
  std::string text = std::string(kCardCluster) + "---\n";
  if (is_trainer(kind)) {
    RuntimeSettings runtime;
    runtime.pod = job.pod;
    runtime.pod.pod_grace_s = kMostGraceSeconds;
    runtime.trainer = kind;
    runtime.storage_class = "fsx";
    text += runtime_documents(DeployTemplates(), runtime) + "---\n";
  }
  return text + job_documents(DeployTemplates(), job, "s");
}

std::vector<std::string> findings_on_cards(const std::string& text) {
  return lint_manifests(parse_manifests(text, "all.yaml"));
}

// The findings once every occurrence is replaced.
std::vector<std::string> findings_with(std::string text, const std::string& old_text,
                                       const std::string& new_text) {
  size_t at = text.find(old_text);
  EXPECT_NE(at, std::string::npos) << old_text;
  for (; at != std::string::npos; at = text.find(old_text, at + new_text.size()))
    text.replace(at, old_text.size(), new_text);
  return findings_on_cards(text);
}

TEST(LintDevices, FindsNothingInWhatTheTemplatesWrite) {
  for (const Word<JobKind>& kind : kJobKinds)
    EXPECT_THAT(findings_on_cards(card_job_of(kind.value)), ElementsAre()) << kind.text;
}

TEST(LintDevices, RequestsOfDevicesAreTheirLimitsInWholeNumbers) {
  const std::string job = card_job_of(JobKind::kJob), train_job = card_job_of(JobKind::kTrainerV21);
  EXPECT_THAT(
      findings_with(job,
                    "limits:\n              cpu: \"62\"\n              memory: \"400Gi\"\n              "
                    "nvidia.com/gpu: \"2\"",
                    "limits:\n              cpu: \"62\"\n              memory: \"400Gi\"\n              "
                    "nvidia.com/gpu: \"3\""),
      Contains(HasSubstr("request and limit of nvidia.com/gpu differ")));
  EXPECT_THAT(findings_with(
                  train_job,
                  "limits:\n        cpu: \"62\"\n        memory: \"400Gi\"\n        nvidia.com/gpu: \"2\"\n",
                  "limits:\n        cpu: \"62\"\n        memory: \"400Gi\"\n"),
              Contains(HasSubstr("TrainJob small: spec.trainer: nvidia.com/gpu has no limit")));
  EXPECT_THAT(findings_with(job, "nvidia.com/gpu: \"2\"", "nvidia.com/gpu: 500m"),
              Contains(HasSubstr("expected a whole number of nvidia.com/gpu")));
}

TEST(LintDevices, CardsNeedATolerationAndSeveralNeedSharedMemory) {
  for (const JobKind kind : {JobKind::kJobSet, JobKind::kJob, JobKind::kTrainerV21, JobKind::kTrainerV23}) {
    const std::string job = card_job_of(kind);
    EXPECT_THAT(findings_with(job, "- key: \"nvidia.com/gpu\"", "- key: other"),
                Contains(HasSubstr("does not tolerate the taint of this name")));
    EXPECT_THAT(findings_with(job, "mountPath: /dev/shm", "mountPath: /shm"),
                Contains(HasSubstr("asks for 2 cards and has no volume in memory at /dev/shm")));
    EXPECT_THAT(findings_with(job, "medium: Memory", "medium: \"\""),
                Contains(HasSubstr("no volume in memory at /dev/shm")));
  }
  std::string one = card_job_of(JobKind::kJob);
  for (size_t at; (at = one.find("nvidia.com/gpu: \"2\"")) != std::string::npos;) one[at + 17] = '1';
  EXPECT_THAT(findings_with(one, "mountPath: /dev/shm", "mountPath: /shm"), ElementsAre())
      << "one card has no peer";
}

TEST(LintDevices, ARunOnACardAsksForOne) {
  for (const JobKind kind : {JobKind::kJob, JobKind::kTrainerV21}) {
    EXPECT_THAT(findings_with(card_job_of(kind), "nvidia.com/gpu: \"2\"", ""),
                Contains(HasSubstr("runs with --device=cuda and asks for no nvidia.com/gpu")));
  }
}

TEST(LintDevices, AQueueThatDoesNotCountTheCardsAdmitsNoJob) {
  for (const JobKind kind : {JobKind::kJobSet, JobKind::kTrainerV21}) {
    const std::string job = card_job_of(kind);
    EXPECT_THAT(findings_with(job, "nominalQuota: 4", "nominalQuota: 1"),
                Contains(HasSubstr("needs 2 of nvidia.com/gpu, the quota of ClusterQueue tessera-gpu is 1")));
    std::string uncounted = job;
    const std::string covered = ", nvidia.com/gpu]",
                      quota = "            - name: nvidia.com/gpu\n              nominalQuota: 4\n";
    uncounted.replace(uncounted.find(covered), covered.size(), "]");
    uncounted.replace(uncounted.find(quota), quota.size(), "");
    EXPECT_THAT(
        findings_on_cards(uncounted),
        ElementsAre(HasSubstr("needs nvidia.com/gpu, which ClusterQueue tessera-gpu does not count")));
  }
}

}  // namespace
}  // namespace tessera
