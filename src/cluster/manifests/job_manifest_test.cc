#include "cluster/manifests/job_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cluster/manifests/lint.h"
#include "cluster/manifests/lint_rules.h"
#include "cluster/manifests/manifest.h"
#include "cluster/manifests/names.h"

namespace tessera {
namespace {

using testing::ElementsAre;

JobSettings small_job(JobKind kind) {
  JobSettings job;
  job.pod.image = "tessera:1";
  job.kind = kind;
  job.name = "small";
  job.num_nodes = 3;
  job.local_world_size = 2;
  job.size = {62, int64_t{400} << 30};
  job.grace = grace_periods(1'000'000'000, 500e6, 1, false);
  job.pod.pod_grace_s = job.grace.pod_s;
  job.train_arguments = {"--model=org/name", "--dataset=org/rows"};
  job.instance = "r7i.16xlarge";
  job.queue = "training";
  job.about = {"A job."};
  return job;
}

std::vector<Manifest> documents(const JobSettings& job) {
  return parse_manifests(job_documents(DeployTemplates(), job, "0123456789abcdef"), "job");
}

// The pod of a JobSet or Job, or of a PyTorchJob's Master.
const Value& pod_of(const std::vector<Manifest>& all) {
  const std::vector<PodTemplate> pods = pod_templates(all.back());
  EXPECT_EQ(pods.size(), all.back().kind() == "PyTorchJob" ? 2u : 1u);
  return *pods.at(0).value;
}

std::string variable(const Value& pod, std::string_view name) {
  for (const Value& each : list_at(pod, "spec.containers.0.env")) {
    if (text_at(each, "name") == name) {
      const std::string value = text_at(each, "value");
      return value.empty() ? text_at(each, "valueFrom.fieldRef.fieldPath") : value;
    }
  }
  return "";
}

TEST(JobManifest, EveryKindHasItsDocumentsAndNoFinding) {
  for (const Word<JobKind>& kind : kJobKinds) {
    const std::vector<Manifest> all = documents(small_job(kind.value));
    std::vector<std::string> kinds;
    for (const Manifest& each : all) kinds.push_back(each.kind());
    if (kind.value == JobKind::kJob) {
      EXPECT_THAT(kinds, ElementsAre("Secret", "NetworkPolicy", "PodDisruptionBudget", "Service", "Job"));
    } else if (kind.value == JobKind::kTrainerV21) {
      EXPECT_THAT(kinds, ElementsAre("TrainingRuntime", "Secret", "NetworkPolicy", "PodDisruptionBudget",
                                     "TrainJob"));
    } else {
      EXPECT_THAT(kinds, ElementsAre("Secret", "NetworkPolicy", "PodDisruptionBudget",
                                     kind.value == JobKind::kJobSet       ? "JobSet"
                                     : kind.value == JobKind::kPyTorchJob ? "PyTorchJob"
                                                                          : "TrainJob"));
    }
    EXPECT_THAT(lint_manifests(all), ElementsAre()) << kind.text;
  }
}

// The Secret's name is longer than a label.
TEST(JobManifest, TheLongestNamesHaveNoFinding) {
  for (const Word<JobKind>& kind : kJobKinds) {
    JobSettings job = small_job(kind.value);
    job.name = std::string(kMaxLabelLength - pod_suffix(kind.value, job.num_nodes).size(), 'n');
    EXPECT_THAT(lint_manifests(documents(job)), ElementsAre()) << kind.text;
  }
}

TEST(JobManifest, ADollarSignInAnArgumentIsNoReferenceToAVariable) {
  for (const Word<JobKind>& kind : kJobKinds) {
    JobSettings job = small_job(kind.value);
    job.train_arguments = {"--run_name=$(HOME) $$ $x"};
    const std::vector<Manifest> all = documents(job);
    const Value::List& args = is_trainer(kind.value) ? list_at(all.back().body, "spec.trainer.args")
                                                     : list_at(pod_of(all), "spec.containers.0.args");
    EXPECT_EQ(args.back(), Value("--run_name=$$(HOME) $$$$ $$x")) << kind.text;
  }
}

TEST(JobManifest, JobsWithoutKubeflowTrainerHaveItsVariables) {
  const std::vector<Manifest> set = documents(small_job(JobKind::kJobSet));
  EXPECT_EQ(variable(pod_of(set), "PET_NNODES"), "3");
  EXPECT_EQ(variable(pod_of(set), "PET_NPROC_PER_NODE"), "2");
  EXPECT_EQ(variable(pod_of(set), "PET_MASTER_ADDR"), "small-node-0-0.small");
  EXPECT_EQ(variable(pod_of(set), "PET_NODE_RANK"),
            "metadata.annotations['batch.kubernetes.io/job-completion-index']");
  EXPECT_EQ(variable(pod_of(set), "TESSERA_RESTART_ATTEMPT"),
            "metadata.labels['jobset.sigs.k8s.io/restart-attempt']");
  const std::vector<Manifest> job = documents(small_job(JobKind::kJob));
  EXPECT_EQ(variable(pod_of(job), "PET_MASTER_ADDR"), "small-0.small");
  EXPECT_EQ(variable(pod_of(job), "TESSERA_RESTART_ATTEMPT"), "") << "nobody sets the label";
}

// pkg/controller.v1/pytorch/envvar.go of the training-operator at v1.8.1: WORLD_SIZE counts ranks and RANK
// pods, the PET_ variables are right, and the port of this name is in PET_MASTER_PORT.
TEST(JobManifest, APyTorchJobLaunchesTheRanksOfItsPods) {
  const std::vector<Manifest> all = documents(small_job(JobKind::kPyTorchJob));
  const Value& job = all.back().body;
  EXPECT_EQ(text_at(job, "spec.nprocPerNode"), "2");
  EXPECT_EQ(text_at(job, "spec.pytorchReplicaSpecs.Master.replicas"), "1");
  EXPECT_EQ(text_at(job, "spec.pytorchReplicaSpecs.Worker.replicas"), "2");
  for (const PodTemplate& pod : pod_templates(all.back())) {
    const Value& container = *value_at(*pod.value, "spec.containers.0");
    EXPECT_EQ(text_at(container, "name"), "pytorch");
    EXPECT_THAT(list_at(container, "command"),
                ElementsAre("env", "--unset=RANK", "--unset=WORLD_SIZE", "tessera"));
    EXPECT_EQ(list_at(container, "args")[0], Value("launch"));
    EXPECT_EQ(variable(*pod.value, "PET_NNODES"), "");
    EXPECT_EQ(text_at(container, "ports.1.name"), "pytorchjob-port");
    EXPECT_EQ(text_at(*pod.value, "spec.restartPolicy"), "") << "the operator's, which warns of one here";
    EXPECT_EQ(text_at(*pod.value, "spec.subdomain"), "") << "each pod has a Service of its own";
  }
  JobSettings alone = small_job(JobKind::kPyTorchJob);
  alone.num_nodes = 1;
  EXPECT_EQ(value_at(documents(alone).back().body, "spec.pytorchReplicaSpecs.Worker"), nullptr);
}

TEST(JobManifest, PatchesAreThoseOfTheTrainersVersion) {
  JobSettings without_queue = small_job(JobKind::kTrainerV21);
  without_queue.queue = "";
  const Value old = documents(without_queue).back().body;
  EXPECT_NE(value_at(old, "spec.podTemplateOverrides.0.spec.volumes.0.secret"), nullptr);
  EXPECT_EQ(value_at(old, "spec.runtimePatches"), nullptr);
  constexpr const char* kPod =
      "spec.runtimePatches.0.trainingRuntimeSpec.template.spec.replicatedJobs.0.template.spec.template.spec";
  const Value v22 = documents(small_job(JobKind::kTrainerV22)).back().body;
  EXPECT_NE(value_at(*value_at(v22, kPod), "volumes.0.secret"), nullptr);
  EXPECT_EQ(value_at(*value_at(v22, kPod), "terminationGracePeriodSeconds"), nullptr)
      << "v2.2 cannot patch it";
  for (const JobKind kind : {JobKind::kTrainerV23, JobKind::kTrainerV24}) {
    const Value newer = documents(small_job(kind)).back().body;
    EXPECT_EQ(text_at(*value_at(newer, kPod), "terminationGracePeriodSeconds"), "50");
  }
}

// Kueue 0.15 adds to podTemplateOverrides, and Kubeflow Trainer 2.1 refuses whatever changes that list of a
// job that runs (pkg/runtime/framework/plugins/jobset/jobset.go): a manifest without the list can be applied
// again.
TEST(JobManifest, AQueuedTrainJobLeavesTheListOfOverridesToKueue) {
  JobSettings job = small_job(JobKind::kTrainerV21);
  job.pod.claim = "other-data";
  const std::vector<Manifest> all = documents(job);
  const Value& train_job = all.back().body;
  EXPECT_EQ(value_at(train_job, "spec.podTemplateOverrides"), nullptr);
  EXPECT_EQ(text_at(train_job, "spec.runtimeRef.kind"), "TrainingRuntime");
  EXPECT_EQ(text_at(train_job, "spec.runtimeRef.name"), "small");
  const Manifest& runtime = all.front();
  EXPECT_EQ(runtime.name(), "small");
  EXPECT_EQ(runtime.name_space(), job.pod.name_space);
  const Value& replicated = *value_at(runtime.body, "spec.template.spec.replicatedJobs.0");
  EXPECT_EQ(text_at(replicated, "template.metadata.labels.'trainer.kubeflow.org/trainjob-ancestor-step'"),
            "trainer");
  const Value& pod = *value_at(replicated, "template.spec.template");
  EXPECT_EQ(text_at(pod, "metadata.labels.'app.kubernetes.io/instance'"), "small");
  EXPECT_EQ(text_at(pod, "spec.nodeSelector.'node.kubernetes.io/instance-type'"), "r7i.16xlarge");
  EXPECT_EQ(text_at(pod, "spec.terminationGracePeriodSeconds"), "50");
  EXPECT_EQ(text_at(pod, "spec.volumes.0.persistentVolumeClaim.claimName"), "other-data");
  EXPECT_EQ(text_at(pod, "spec.volumes.2.secret.secretName"), "small-rendezvous");
  EXPECT_EQ(variable(pod, "PET_NNODES"), "") << "Kubeflow Trainer sets them";
  EXPECT_EQ(value_at(pod, "spec.containers.0.resources"), nullptr) << "the TrainJob has them";
}

// Kueue admits no other job until the pods of this one are ready (waitForPodsReady.blockAdmission).
TEST(JobManifest, PodsAreReadyAsSoonAsTheyRun) {
  for (const JobKind kind : {JobKind::kTrainerV21, JobKind::kJobSet, JobKind::kJob}) {
    for (const Manifest& each : documents(small_job(kind))) {
      for (const PodTemplate& pod : pod_templates(each)) {
        const Value& container = *value_at(*pod.value, "spec.containers.0");
        EXPECT_EQ(value_at(container, "startupProbe"), nullptr);
        EXPECT_EQ(value_at(container, "readinessProbe"), nullptr);
        EXPECT_EQ(*value_at(container, "livenessProbe.initialDelaySeconds"), Value(14400))
            << "nothing answers while a model is downloaded";
      }
    }
  }
}

// A reference to a field is one value for `kubectl apply --server-side`: without what Kubernetes fills in,
// applying the job again would change it, which is a conflict where the first time was without --server-side.
TEST(JobManifest, ReferencesToFieldsSayWhatKubernetesWouldAdd) {
  int64_t num_references = 0;
  for (const JobKind kind : {JobKind::kTrainerV21, JobKind::kJobSet, JobKind::kJob}) {
    for (const Manifest& each : documents(small_job(kind))) {
      for (const PodTemplate& pod : pod_templates(each)) {
        for (const Value& variable : list_at(*pod.value, "spec.containers.0.env")) {
          const Value* const reference = value_at(variable, "valueFrom.fieldRef");
          if (reference == nullptr) continue;
          EXPECT_EQ(text_at(*reference, "apiVersion"), "v1") << text_at(variable, "name");
          ++num_references;
        }
      }
    }
  }
  EXPECT_EQ(num_references, 4);
}

// Kueue writes amounts this way when it updates a TrainJob.
TEST(JobManifest, AmountsAreInTheirLargestUnit) {
  const Value train_job = documents(small_job(JobKind::kTrainerV22)).back().body;
  EXPECT_EQ(text_at(train_job, "spec.trainer.resourcesPerNode.limits.memory"), "400Gi");
  EXPECT_EQ(text_at(train_job, "spec.trainer.resourcesPerNode.limits.cpu"), "62");
}

TEST(JobManifest, ASecretOfTheUserIsNotWritten) {
  JobSettings job = small_job(JobKind::kJobSet);
  job.rendezvous_secret = "mine";
  const std::vector<Manifest> all = documents(job);
  EXPECT_EQ(all.front().kind(), "NetworkPolicy");
  EXPECT_EQ(text_at(pod_of(all), "spec.volumes.2.secret.secretName"), "mine");
  EXPECT_EQ(text_at(documents(small_job(JobKind::kJob)).front().body, "stringData.secret"),
            "0123456789abcdef");
}

TEST(JobManifest, OneNodeNeedsNoBudgetAndNoZone) {
  JobSettings job = small_job(JobKind::kJobSet);
  job.num_nodes = 1;
  const std::vector<Manifest> all = documents(job);
  for (const Manifest& each : all) EXPECT_NE(each.kind(), "PodDisruptionBudget");
  EXPECT_EQ(value_at(pod_of(all), "spec.affinity.podAffinity"), nullptr);
}

// Whatever the text, it arrives as one argument and changes nothing else of the document.
TEST(JobManifest, TextOfTheUserStaysText) {
  for (const char* text :
       {"a: b", "x\" # y", "'", "{{ 1 + 1 }}", "{% raw %}", "- c", "&a", "*a", "!!int 3", "\\n", "yes",
        "0440", "\xc3\xa4\xe2\x82\xac", "| kind", "---", "null", "1e3", "#"}) {
    for (const Word<JobKind>& kind : kJobKinds) {
      JobSettings job = small_job(kind.value);
      job.train_arguments = {text};
      job.pod.image = text;
      job.about = {text};
      const std::vector<Manifest> all = documents(job);
      ASSERT_EQ(all.size(), documents(small_job(kind.value)).size()) << text;
      const bool trains = is_trainer(kind.value);
      const Value& container =
          trains ? *value_at(all.back().body, "spec.trainer") : *value_at(pod_of(all), "spec.containers.0");
      EXPECT_EQ(list_at(container, "args").back(), Value(text)) << text;
      EXPECT_EQ(*container.find("image"), Value(text)) << text;
    }
  }
}

TEST(JobManifest, AFailedNodeCheckReplacesItsPodAndNothingCounts) {
  const auto rules_of = [](const Value& job) { return list_at(job, "podFailurePolicy.rules"); };
  for (const JobKind kind : {JobKind::kJobSet, JobKind::kJob}) {
    JobSettings job = small_job(kind);
    EXPECT_EQ(rules_of(*pod_templates(documents(job).back()).at(0).job).size(), 3u);
    job.pod.node_check = true;
    const std::vector<Manifest> all = documents(job);
    const Value::List rules = rules_of(*pod_templates(all.back()).at(0).job);
    ASSERT_EQ(rules.size(), 4u) << "after those whose index the JobSet's policy knows";
    EXPECT_EQ(text_at(rules[3], "action"), "Ignore");
    EXPECT_EQ(text_at(rules[3], "onExitCodes.containerName"), "node-check");
    EXPECT_EQ(list_at(rules[3], "onExitCodes.values"), (Value::List{1, 2})) << "unhealthy, not known";
    EXPECT_EQ(text_at(pod_of(all), "spec.initContainers.0.terminationMessagePolicy"), "FallbackToLogsOnError")
        << "for tessera status";
  }
}

// Other pods keep the fields they had.
TEST(JobManifest, PodsOnCardsAskForThemAndGoToTheirNodes) {
  for (const JobKind kind : {JobKind::kJobSet, JobKind::kJob}) {
    JobSettings job = small_job(kind);
    const Value without = pod_of(documents(job));
    EXPECT_EQ(text_at(without, "spec.tolerations.0.key"), "intel.com/amx");
    EXPECT_EQ(text_at(without, "spec.nodeSelector.nodeType"), "cpu-amx");
    EXPECT_EQ(variable(without, "NVIDIA_DRIVER_CAPABILITIES"), "");
    job.pod.on_card = true;
    job.pod.needs_amx = false;
    job.pod.node_check = true;
    job.num_cards = 1;
    job.num_efa = 4;
    const std::vector<Manifest> all = documents(job);
    EXPECT_THAT(lint_manifests(all), ElementsAre());
    const Value& pod = pod_of(all);
    EXPECT_EQ(text_at(pod, "spec.tolerations.0.key"), "nvidia.com/gpu");
    EXPECT_EQ(text_at(pod, "spec.nodeSelector.nodeType"), "gpu");
    EXPECT_EQ(text_at(pod, "spec.runtimeClassName"), "") << "the nodes' default runtime";
    for (const char* part : {"requests", "limits"}) {
      const Value& main = *value_at(pod, std::string("spec.containers.0.resources.") + part);
      EXPECT_EQ(*main.find("nvidia.com/gpu"), Value("1"));
      EXPECT_EQ(*main.find("vpc.amazonaws.com/efa"), Value("4"));
      const Value& check = *value_at(pod, std::string("spec.initContainers.0.resources.") + part);
      EXPECT_EQ(*check.find("nvidia.com/gpu"), Value("1")) << "the check sees the card";
    }
    EXPECT_EQ(variable(pod, "NVIDIA_DRIVER_CAPABILITIES"), "compute,utility");
    EXPECT_EQ(variable(pod, "NVIDIA_VISIBLE_DEVICES"), "") << "the device plugin says which";
    EXPECT_EQ(text_at(pod, "spec.containers.0.volumeMounts.2.mountPath"), "/dev/shm");
    EXPECT_EQ(text_at(pod, "spec.volumes.2.emptyDir.medium"), "Memory");
    EXPECT_EQ(text_at(pod, "spec.volumes.2.emptyDir.sizeLimit"), "1Gi");
  }
  JobSettings job = small_job(JobKind::kTrainerV21);
  job.queue = "";
  job.pod.on_card = true;
  job.num_cards = 1;
  const Value train_job = documents(job).back().body;
  EXPECT_EQ(text_at(train_job, "spec.podTemplateOverrides.0.spec.nodeSelector.nodeType"), "gpu");
  EXPECT_EQ(*value_at(train_job, "spec.trainer.resourcesPerNode.limits")->find("nvidia.com/gpu"), Value("1"));
}

// A queue with a topology pins every pod to a host: without the annotation to any host at all.
TEST(JobManifest, AQueueWithATopologyPlacesThePodsInOneZone) {
  for (const Word<JobKind>& each : kJobKinds) {
    JobSettings job = small_job(each.value);
    job.topology = true;
    const std::string text = job_documents(DeployTemplates(), job, "s");
    EXPECT_THAT(text,
                testing::HasSubstr("kueue.x-k8s.io/podset-required-topology: topology.kubernetes.io/zone"))
        << each.text;
    EXPECT_THAT(text, testing::Not(testing::HasSubstr("podAffinity"))) << each.text;
    EXPECT_THAT(lint_manifests(parse_manifests(text, "job")), ElementsAre());
  }
}

TEST(JobManifest, SuffixesAreThoseOfTheLongestHostName) {
  EXPECT_EQ(pod_suffix(JobKind::kTrainerV21, 4), "-node-0-3");
  EXPECT_EQ(pod_suffix(JobKind::kJobSet, 128), "-node-0-127");
  EXPECT_EQ(pod_suffix(JobKind::kJob, 1), "-0");
  EXPECT_EQ(pod_suffix(JobKind::kPyTorchJob, 1).size(), std::string("-master-0").size());
  EXPECT_EQ(pod_suffix(JobKind::kPyTorchJob, 12), "-worker-10");
}

TEST(RuntimeManifest, HasWhatItsJobsNeedInEveryForm) {
  for (const Word<JobKind>& kind : kJobKinds) {
    RuntimeSettings runtime;
    runtime.pod.image = "tessera:1";
    runtime.storage_class = "fsx";
    if (is_trainer(kind.value)) runtime.trainer = kind.value;
    std::string text = runtime_documents(DeployTemplates(), runtime);
    EXPECT_EQ(text, runtime_documents(DeployTemplates(), runtime)) << "the same every time";
    EXPECT_EQ(text.find("kind: Secret"), std::string::npos);
    EXPECT_EQ(text.find("kind: Namespace"), std::string::npos) << "kubectl delete -f would delete all jobs";
    text += "---\n" + job_documents(DeployTemplates(), small_job(kind.value), "0123456789abcdef");
    EXPECT_THAT(lint_manifests(parse_manifests(text, "all")), ElementsAre()) << kind.text;
    EXPECT_EQ(text.find("ClusterTrainingRuntime") != std::string::npos, is_trainer(kind.value));
  }
}

// The Kubeflow SDK (kubeflow/trainer/backends/kubernetes) relies on the label, the container `node` with an
// image, and a command to which a TrainJob adds arguments.
TEST(RuntimeManifest, StartsJobsThatGiveOnlyWhatToTrain) {
  RuntimeSettings runtime;
  runtime.pod.image = "tessera:1";
  runtime.storage_class = "fsx";
  runtime.trainer = JobKind::kTrainerV22;
  const std::vector<Manifest> all = parse_manifests(runtime_documents(DeployTemplates(), runtime), "runtime");
  const Value& made = all.back().body;
  EXPECT_EQ(all.back().name(), "tessera");
  EXPECT_EQ(text_at(made, "metadata.labels.'trainer.kubeflow.org/framework'"), "tessera");
  const Value& pod = *value_at(made, "spec.template.spec.replicatedJobs.0.template.spec.template");
  const Value& container = *value_at(pod, "spec.containers.0");
  EXPECT_EQ(value_at(container, "args"), nullptr) << "those of the TrainJob";
  EXPECT_THAT(
      list_at(container, "command"),
      ElementsAre("tessera", "launch", "--max_restarts=3", "--termination_grace_s=100", "--under_controller",
                  "train", "--grace_period_s=90", "--output_dir=/data/runs/$(PET_RDZV_ID)",
                  "--resume_from_checkpoint=auto", "--metrics_port=9400", "--metrics_host=0.0.0.0"));
  EXPECT_EQ(variable(pod, "PET_RDZV_ID"), "metadata.labels['jobset.sigs.k8s.io/jobset-name']");
  const auto policy = std::ranges::find_if(
      all, [](const Manifest& each) { return each.kind() == "NetworkPolicy" && each.name() == "tessera"; });
  ASSERT_NE(policy, all.end()) << "the namespace denies what no policy allows";
  constexpr const char* kInstance = "'app.kubernetes.io/instance'";
  EXPECT_EQ(text_at(policy->body, fmt::format("spec.podSelector.matchLabels.{}", kInstance)),
            text_at(pod, fmt::format("metadata.labels.{}", kInstance)));
}

TEST(RuntimeManifest, OnlyAFileSystemWithoutAnOwnerNeedsAJobThatRunsAsRoot) {
  for (const auto& [volume, num_jobs] : {std::pair(lustre_volume("fs-1", "fs-1.fsx.x", "abc"), 1),
                                         {efs_volume("fs-1"), 1},
                                         {efs_volume("fs-1::fsap-2"), 0}}) {
    RuntimeSettings runtime;
    runtime.pod.image = "tessera:1";
    runtime.volume = volume;
    const std::string text = runtime_documents(DeployTemplates(), runtime);
    const std::vector<Manifest> all = parse_manifests(text, "runtime");
    EXPECT_EQ(std::ranges::count(all, "Job", &Manifest::kind), num_jobs) << volume.handle;
    EXPECT_EQ(text.find("`restricted` takes no such pod") != std::string::npos, num_jobs == 1);
  }
}

TEST(RuntimeManifest, ClaimsAVolumeThatExists) {
  RuntimeSettings runtime;
  runtime.pod.image = "tessera:1";
  runtime.volume = RuntimeVolume{"NFS", "10.0.0.5", "/export", "", "", {}, {"hard"}};
  runtime.secrets = {{"hf-token", "hf_x"}};
  const std::vector<Manifest> all = parse_manifests(runtime_documents(DeployTemplates(), runtime), "runtime");
  EXPECT_THAT(lint_manifests(all), ElementsAre());
  for (const Manifest& each : all) {
    if (each.kind() == "PersistentVolume") {
      EXPECT_EQ(text_at(each.body, "spec.nfs.server"), "10.0.0.5");
    }
    if (each.kind() == "PersistentVolumeClaim") {
      EXPECT_EQ(text_at(each.body, "spec.volumeName"), "training-training-data");
    }
    if (each.kind() == "Secret") {
      EXPECT_EQ(text_at(each.body, "stringData.token"), "hf_x");
    }
  }
}

TEST(RandomToken, IsLongAndNeverTheSame) {
  std::set<std::string> tokens;
  for (int i = 0; i < 100; ++i) {
    const std::string token = random_token();
    EXPECT_EQ(token.size(), 64u);
    EXPECT_EQ(token.find_first_not_of("0123456789abcdef"), std::string::npos);
    EXPECT_TRUE(tokens.insert(token).second);
  }
}

}  // namespace
}  // namespace tessera
