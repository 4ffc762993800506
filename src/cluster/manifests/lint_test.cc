#include "cluster/manifests/lint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cluster/manifests/job_manifest.h"
#include "cluster/manifests/lint_rules.h"
#include "expect_error.h"

namespace tessera {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr const char* kCluster = R"(apiVersion: karpenter.sh/v1
kind: NodePool
metadata:
  name: cpu-amx
spec:
  template:
    metadata:
      labels:
        nodeType: cpu-amx
    spec:
      nodeClassRef:
        group: karpenter.k8s.aws
        kind: EC2NodeClass
        name: cpu-amx
      taints:
        - key: intel.com/amx
          value: "true"
          effect: NoSchedule
      requirements:
        - key: karpenter.sh/capacity-type
          operator: In
          values: [spot, on-demand]
        - key: karpenter.k8s.aws/instance-generation
          operator: Gt
          values: ["6"]
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata:
  name: cpu-amx
spec:
  role: nodes
  amiSelectorTerms: [{alias: al2023@latest}]
  subnetSelectorTerms: [{tags: {a: b}}]
  securityGroupSelectorTerms: [{tags: {a: b}}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata:
  name: cpu-amx
spec:
  nodeLabels:
    nodeType: cpu-amx
  tolerations:
    - key: intel.com/amx
      operator: Exists
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata:
  name: tessera
spec:
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [cpu, memory]
      flavors:
        - name: cpu-amx
          resources:
            - name: cpu
              nominalQuota: 248
            - name: memory
              nominalQuota: 1600Gi
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata:
  name: training
  namespace: training
spec:
  clusterQueue: tessera
)";

constexpr const char* kMonitor = R"(apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: tessera
  namespace: training
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: tessera
  podMetricsEndpoints:
    - port: metrics
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: exporter
spec:
  selector:
    matchLabels:
      app: exporter
  template:
    metadata:
      labels:
        app: exporter
    spec:
      containers:
        - name: exporter
          image: x
)";

JobSettings job_of(JobKind kind) {
  JobSettings job;
  job.pod.image = "tessera:1";
  job.pod.node_check = true;
  job.kind = kind;
  job.name = "small";
  job.num_nodes = 3;
  job.size = {62, int64_t{400} << 30};
  job.grace = grace_periods(1'000'000'000, 500e6, 1, false);
  job.pod.pod_grace_s = job.grace.pod_s;
  job.queue = "training";
  job.about = {"A job."};
  return job;
}

std::string runtime_of(JobKind kind) {
  RuntimeSettings runtime;
  runtime.pod.image = "tessera:1";
  runtime.trainer = kind;
  runtime.storage_class = "fsx";
  return runtime_documents(DeployTemplates(), runtime);
}

std::string with_trainer(JobKind kind) {
  return std::string(kCluster) + "---\n" + runtime_of(kind) + "---\n" +
         job_documents(DeployTemplates(), job_of(kind), "s");
}

std::string without_trainer(JobKind kind) {
  return std::string(kCluster) + "---\n" + kMonitor + "---\n" +
         job_documents(DeployTemplates(), job_of(kind), "s");
}

std::vector<std::string> findings(const std::string& text) {
  return lint_manifests(parse_manifests(text, "all.yaml"));
}

struct Damage {
  const char* old_text;
  const char* new_text;
  const char* finding;
};

// Every occurrence is replaced.
void expect_found(const std::string& good, const Damage& damage) {
  std::string text = good;
  const std::string old_text = damage.old_text, new_text = damage.new_text;
  size_t at = text.find(old_text);
  ASSERT_NE(at, std::string::npos) << old_text;
  for (; at != std::string::npos; at = text.find(old_text, at + new_text.size()))
    text.replace(at, old_text.size(), new_text);
  EXPECT_THAT(findings(text), Contains(HasSubstr(damage.finding))) << old_text << " -> " << new_text;
}

TEST(Lint, FindsNothingInWhatTheTemplatesWrite) {
  for (const JobKind kind : {JobKind::kTrainerV21, JobKind::kTrainerV22, JobKind::kTrainerV23}) {
    EXPECT_THAT(findings(with_trainer(kind)), ElementsAre());
  }
  for (const JobKind kind : {JobKind::kJobSet, JobKind::kJob})
    EXPECT_THAT(findings(without_trainer(kind)), ElementsAre());
}

// The document whose text has `old_text` replaced.
std::string changed(std::string text, const std::string& old_text, const std::string& new_text) {
  size_t at = text.find(old_text);
  EXPECT_NE(at, std::string::npos) << old_text;
  for (; at != std::string::npos; at = text.find(old_text, at + new_text.size()))
    text.replace(at, old_text.size(), new_text);
  return text;
}

// Kubernetes takes a limit for a request that is not there.
TEST(Lint, LimitsAloneAreGuaranteed) {
  const std::string own = without_trainer(JobKind::kJob);
  const std::string requests = "            requests:\n              cpu: \"62\"\n";
  EXPECT_THAT(findings(changed(own, requests, "            requests:\n")), ElementsAre());
  EXPECT_THAT(findings(changed(with_trainer(JobKind::kTrainerV21),
                               "      requests:\n        cpu: \"62\"\n        memory: \"400Gi\"\n", "")),
              ElementsAre());
  expect_found(own, {"            limits:\n              cpu: \"62\"\n", "            limits:\n",
                     "has no limit of cpu, so the pod is not Guaranteed"});
  expect_found(own, {"requests:\n              cpu: \"62\"", "requests:\n              cpu: 1x",
                     "requests and limits of cpu differ"});
  // They count in the queue, too.
  expect_found(changed(with_trainer(JobKind::kTrainerV21),
                       "      requests:\n        cpu: \"62\"\n        memory: \"400Gi\"\n", ""),
               {"numNodes: 3", "numNodes: 5", "needs 310 of cpu"});
}

TEST(Lint, FindsLimitsBelowThePlan) {
  for (const Word<JobKind>& kind : kJobKinds) {
    JobSettings job = job_of(kind.value);
    job.planned_bytes = int64_t{300} << 30;
    const std::string good = job_documents(DeployTemplates(), job, "s");
    EXPECT_THAT(findings(good), ElementsAre()) << kind.text;
    expect_found(good, {"memory: \"400Gi\"", "memory: \"299Gi\"",
                        "has 299.0 GiB of memory, and the run was planned with 300.0 GiB"});
  }
}

TEST(Lint, FindsPodsThatDoNotMeet) {
  for (const JobKind kind : {JobKind::kJobSet, JobKind::kJob}) {
    const std::string good = without_trainer(kind);
    expect_found(good, {"PET_NNODES", "NNODES", "each of the 3 pods would train alone"});
    expect_found(good, {"parallelism: 3", "parallelism: 4", "PET_NNODES is 3, and there are 4 pods"});
    expect_found(good, {"PET_MASTER_ADDR", "MASTER", "nothing says where the 3 pods meet"});
  }
  for (const JobKind kind :
       {JobKind::kTrainerV21, JobKind::kTrainerV22, JobKind::kJob, JobKind::kPyTorchJob}) {
    expect_found(
        with_trainer(is_trainer(kind) ? kind : JobKind::kTrainerV21) + "---\n" + without_trainer(kind),
        {"mountPath: /etc/tessera/rendezvous", "mountPath: /etc/tessera/other",
         "no volume is mounted where --rdzv_secret_file /etc/tessera/rendezvous/secret is"});
  }
}

// Where Secrets are among the files, those that pods cannot start without are.
TEST(Lint, FindsSecretsThatAreNotThere) {
  const std::string other = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: other}\n";
  for (const Word<JobKind>& kind : kJobKinds) {
    JobSettings job = job_of(kind.value);
    job.rendezvous_secret = "mine";
    const std::string text = job_documents(DeployTemplates(), job, "");
    EXPECT_THAT(findings(text), ElementsAre());
    EXPECT_THAT(findings(text + other), Each(HasSubstr("no Secret is called 'mine'"))) << kind.text;
    EXPECT_THAT(findings(text + other), SizeIs(kind.value == JobKind::kPyTorchJob ? 2 : 1));
  }
  const std::string pod = R"(apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  containers:
    - name: a
      envFrom: [{secretRef: {name: all}}, {secretRef: {name: maybe, optional: true}}]
      env:
        - {name: A, valueFrom: {secretKeyRef: {name: one, key: k}}}
        - {name: B, valueFrom: {secretKeyRef: {name: perhaps, key: k, optional: true}}}
)";
  EXPECT_THAT(findings(pod + other), ElementsAre(HasSubstr("'one'"), HasSubstr("'all'")));
}

TEST(Lint, KindsWithoutRulesAreToldApart) {
  const auto has = [](const char* text) { return has_rules(parse_manifests(text, "x").at(0)); };
  EXPECT_TRUE(has("apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\n"));
  EXPECT_TRUE(has("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"));
  EXPECT_FALSE(has("apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: a}\n"));
  // Volcano's, for which the rules of Kubernetes' own Jobs do not hold.
  const char* const volcano =
      "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: a}\nspec: {template: {spec: {}}}\n";
  EXPECT_FALSE(has(volcano));
  EXPECT_THAT(findings(volcano), ElementsAre());
}

TEST(Lint, FindsWhatIsWrongWithATrainJob) {
  const Damage kDamages[] = {
      {"  trainer:\n", "  trainer_:\n", "TrainJob small: spec.trainer: is missing"},
      {"numProcPerNode: 1", "numProcPerNode: auto",
       "TrainJob small: spec.trainer.numProcPerNode: expected a number"},
      {"numProcPerNode: 1", "numProcPerNode: gpu", "the pods ask for no nvidia.com/gpu"},
      {"limits:\n        cpu: \"62\"", "limits:\n        cpu: \"60\"", "requests and limits of cpu differ"},
      {"name: \"small\"", "name: \"s123456789012345678901234567890123456789012345678901234567\"",
       "has more than 63 characters"},
      {"--termination_grace_s=40", "--termination_grace_s=900", "kubelet kills the pod after 600 s"},
      {"--grace_period_s=30", "--grace_period_s=50", "--grace_period_s 50 is not below"},
      {"queue-name: \"training\"", "queue-name: \"other\"",
       "no LocalQueue of its namespace is called 'other'"},
      {"numNodes: 3", "numNodes: 5",
       "needs 310 of cpu, the quota of ClusterQueue tessera is 248: it is never admitted"},
      {"app.kubernetes.io/instance: \"small\"\n                      spec",
       "app.kubernetes.io/instance: \"other\"\n                      spec",
       "PodDisruptionBudget small: spec.selector: selects none"},
      {"    nodeType: cpu-amx\n  tol", "    nodeType: cpu-amx\n  topologyName: tessera\n  tol",
       "have a topology, but the pods ask for none"},
      {"  labels:\n                          app.kubernetes.io/instance: \"small\"\n",
       "  labels:\n                          app.kubernetes.io/instance: \"small\"\n                        "
       "annotations:\n                          "
       "kueue.x-k8s.io/podset-required-topology: zone\n",
       "asks for a topology, which no flavor of ClusterQueue tessera has"},
  };
  for (const Damage& damage : kDamages) expect_found(with_trainer(JobKind::kTrainerV22), damage);
  // Its own runtime has the pods.
  expect_found(with_trainer(JobKind::kTrainerV21),
               {"--termination_grace_s=40", "--termination_grace_s=900", "kubelet kills the pod after 50 s"});
  expect_found(with_trainer(JobKind::kTrainerV21) + "---\n" + kMonitor,
               {"- port: metrics", "- port: metricz", "no pod that it selects has a port called 'metricz'"});
  JobSettings with_claim = job_of(JobKind::kTrainerV22);
  with_claim.pod.claim = "mine";
  EXPECT_THAT(findings(std::string(kCluster) + "---\n" + runtime_of(JobKind::kTrainerV22) + "---\n" +
                       job_documents(DeployTemplates(), with_claim, "s")),
              ElementsAre(HasSubstr(
                  "TrainJob small: spec.runtimePatches: no PersistentVolumeClaim is called 'mine'")));
  expect_found(with_trainer(JobKind::kTrainerV23),
               {"GracePeriodSeconds: 50", "GracePeriodSeconds: 20", "after 20 s"});
}

TEST(Lint, PrometheusShowsTheTokenThatPodsAskFor) {
  const std::string secret =
      "---\napiVersion: v1\nkind: Secret\nmetadata: {name: tessera-metrics, namespace: training}\n";
  const std::string monitor = R"(apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {name: tessera, namespace: training}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: tessera}}
  podMetricsEndpoints:
    - port: metrics
)";
  EXPECT_THAT(findings(monitor), ElementsAre());
  EXPECT_THAT(findings(monitor + secret),
              ElementsAre(HasSubstr("pods ask for that of the Secret tessera-metrics (deploy alerts")));
  EXPECT_THAT(findings(monitor + "      authorization: {credentials: {name: tessera-metrics, key: token}}\n" +
                       secret),
              ElementsAre());
}

// https://github.com/kubeflow/training-operator at v1.8.1, pkg/controller.v1/pytorch/envvar.go: which pod is
// which rank.
TEST(Lint, FindsWhatIsWrongWithAPyTorchJob) {
  const std::string job = R"(apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: dist}
spec:
  nprocPerNode: "1"
  pytorchReplicaSpecs:
    Master:
)";
  const std::string pods = R"(      template:
        spec:
          containers:
            - name: pytorch
              command: [tessera]
              args: [train, --model=org/m]
              resources: {limits: {nvidia.com/gpu: 1}}
          tolerations: [{key: nvidia.com/gpu, operator: Exists}]
)";
  const std::string good = job + "      replicas: 1\n" + pods + "    Worker:\n      replicas: 3\n" + pods;
  EXPECT_THAT(findings(good), ElementsAre());
  const Damage kDamages[] = {
      {"    Master:", "    Chief:", "PyTorchJob dist: spec.pytorchReplicaSpecs: has no Master"},
      {"args: [train,", "args: [launch, train,", "`tessera launch` ends at once where pods are ranks"},
      {"nprocPerNode: \"1\"", "nprocPerNode: \"8\"", "spec.nprocPerNode: expected 1"},
      {"operator: Exists", "operator: Exists, effect: NoExecute", "does not tolerate the taint of this name"},
  };
  for (const Damage& damage : kDamages) expect_found(good, damage);
}

TEST(Lint, FindsWhatIsWrongWithARuntime) {
  const Damage kDamages[] = {
      {"  - name: node\n          replicas", "  - name: worker\n          replicas",
       "the trainer's must be called 'node'"},
      {"trainjob-ancestor-step: trainer", "trainjob-ancestor-step: other", "none has the label"},
      {"enableDNSHostnames: true", "subdomain: x", "network.subdomain: must not be set"},
      {"at index 2$", "at index 3$", "'at index 3$' matches no rule of podFailurePolicy, which has 3"},
      {"claimName: \"training-data\"", "claimName: \"other\"", "no PersistentVolumeClaim is called 'other'"},
      {"- key: \"intel.com/amx\"\n                      operator",
       "- key: other\n                      operator",
       "the taint intel.com/amx of NodePool cpu-amx, which it selects, is not tolerated"},
      {"emptyDir:\n                        sizeLimit",
       "emptyDir:\n                        medium: Memory\n                        x",
       "is in memory and has no sizeLimit"},
  };
  for (const Damage& damage : kDamages) expect_found(with_trainer(JobKind::kTrainerV21), damage);
}

TEST(Lint, FindsWhatIsWrongWithAJobOfItsOwn) {
  const Damage kDamages[] = {
      {"limits:\n              cpu: \"62\"", "limits:\n              cpu: \"61\"",
       "requests and limits of cpu differ"},
      {"cpu: \"62\"", "cpu: 61500m", "61.5 CPUs: a static CPU manager"},
      {"emptyDir:\n            sizeLimit: 8Gi",
       "emptyDir:\n            medium: Memory\n            sizeLimit: 500Gi",
       "volumes in memory take all of the memory limit"},
      {"  selector:\n    app.kubernetes.io/name: tessera\n",
       "  selector:\n    app.kubernetes.io/name: other\n", "Service small: spec.selector: selects none"},
      {"  selector:\n    matchLabels:\n      app.kubernetes.io/name: tessera\n      "
       "app.kubernetes.io/instance",
       "  selector:\n    matchLabels:\n      app: a\n      b",
       "PodDisruptionBudget small: spec.selector: selects none"},
      {"subdomain: \"small\"", "subdomain: other",
       "PET_MASTER_ADDR is small-0.small, the subdomain of the pods 'other'"},
      {"minAvailable: 2", "maxUnavailable: 0", "0 blocks every drain"},
      {"- port: metrics", "- port: http", "no pod that it selects has a port called 'http'"},
  };
  for (const Damage& damage : kDamages) {
    expect_found(without_trainer(JobKind::kJob), damage);
  }
  const std::string twice = without_trainer(JobKind::kJobSet) + "---\n" +
                            job_documents(DeployTemplates(), job_of(JobKind::kJobSet), "s");
  EXPECT_THAT(findings(twice), Contains(HasSubstr("JobSet small: metadata.name: appears twice")));
}

TEST(Lint, FindsWhatIsWrongWithQueuesAndNodes) {
  const Damage kDamages[] = {
      {"  namespaceSelector: {}\n", "", "namespaceSelector: is missing"},
      {"        - name: cpu-amx\n          resources", "        - name: other\n          resources",
       "no ResourceFlavor is called 'other'"},
      {"  nodeLabels:\n    nodeType: cpu-amx", "  nodeLabels:\n    nodeType: gpu",
       "no NodePool gives its nodes these labels"},
      {"    - key: intel.com/amx\n      operator", "    - key: amx\n      operator",
       "the taint intel.com/amx of NodePool cpu-amx is not tolerated"},
      {"clusterQueue: tessera", "clusterQueue: other", "no ClusterQueue is called 'other'"},
      {"        name: cpu-amx\n      taints", "        name: other\n      taints",
       "no EC2NodeClass is called 'other'"},
  };
  for (const Damage& damage : kDamages) expect_found(kCluster, damage);
}

TEST(Lint, ReportsTheFirstFindingAndHowManyThereAre) {
  expect_error(ExitCode::kInternal, {"x:1: ClusterQueue q: spec.namespaceSelector: is missing"}, [] {
    check_manifests("apiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata: {name: q}\n", "x",
                    ExitCode::kInternal);
  });
  expect_error(ExitCode::kBadData, {"(2 findings in all)"}, [] {
    check_manifests(
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: q}\nspec: {maxUnavailable: 0}\n"
        "---\n[]\n",
        "x", ExitCode::kBadData);
  });
}

TEST(Lint, QuantitiesAreThoseOfKubernetes) {
  const auto number = [](Value value) { return quantity(&value); };
  EXPECT_EQ(number("500m"), 0.5);
  EXPECT_EQ(number("2Gi"), 2147483648.0);
  EXPECT_EQ(number("1k"), 1000);
  EXPECT_EQ(number("1E"), 1e18);
  EXPECT_EQ(number("2u"), 2e-6);
  EXPECT_EQ(number(62), 62);
  EXPECT_EQ(number(1.5), 1.5);
  EXPECT_EQ(number("2 Gi"), std::nullopt);
  EXPECT_EQ(number("x"), std::nullopt);
  EXPECT_EQ(number(true), std::nullopt);
  EXPECT_EQ(quantity(nullptr), std::nullopt);
}

}  // namespace
}  // namespace tessera
