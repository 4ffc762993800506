#include "cluster/deploy/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/manifests/manifest.h"
#include "expect_error.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// A typical job for another program has a shell that fetches the program, envsubst variables and comments.
constexpr const char* kTrainJob = R"(# Fine-tunes on four nodes.
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: llama
spec:
  podTemplateOverrides:
    - targetJobs:
        - name: node
      spec:
        nodeSelector:
          karpenter.sh/nodepool: ${NODEPOOL}   # from the environment
  runtimeRef:
    name: torch-distributed
  trainer:
    numNodes: ${NODES}
    numProcPerNode: 1

    # how it is started
    command:
    - /bin/bash
    - -c
    - |
      git clone https://example.com/code /workspace

      torchrun --nproc_per_node=1 \
        train.py
    image: example.com/pytorch:2
    resourcesPerNode:
      limits:
        cpu: "32"
        memory: "64Gi"
)";

constexpr const char* kPyTorchJob = R"(apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: dist
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
          - image: example.com/pytorch:2
            name: pytorch
            command: ["/bin/bash", "-c"]
            args:
              - |
                python train.py
            resources: {limits: {cpu: "4"}}
          - name: sidecar
            image: example.com/logs:1
    Worker:
      replicas: 3
      template:
        spec:
          containers:
          - name: pytorch
            image: example.com/pytorch:2
)";

Conversion conversion() { return {"tessera:1", "", {"--model=org/m", "--output_dir=/mnt/out"}}; }

std::string without_lines_between(const std::string& text, const std::string& begin, const std::string& end) {
  const size_t from = text.find(begin), to = text.find(end);
  return text.substr(0, from) + text.substr(to);
}

TEST(ConvertJobs, ReplaceImageAndCommandOfATrainJob) {
  const std::string text = convert_jobs(kTrainJob, "job.yaml", conversion());
  const Value trainer = *value_at(parse_manifests(text, "job").at(0).body, "spec.trainer");
  EXPECT_EQ(text_at(trainer, "image"), "tessera:1");
  EXPECT_THAT(list_at(trainer, "command"), ElementsAre("tessera"));
  EXPECT_THAT(list_at(trainer, "args"),
              ElementsAre("launch", "--max_restarts=3", "--rdzv_id=llama", "--termination_grace_s=20",
                          "train", "--grace_period_s=10", "--model=org/m", "--output_dir=/mnt/out"));
}

TEST(ConvertJobs, LeaveEverythingElseAsItIs) {
  const std::string text = convert_jobs(kTrainJob, "job.yaml", conversion());
  for (const char* kept :
       {"# Fine-tunes on four nodes.\n", "    numNodes: ${NODES}\n", "${NODEPOOL}   # from the environment\n",
        "\n\n    # how it is started\n", "    name: torch-distributed\n", "        memory: \"64Gi\"\n"})
    EXPECT_THAT(text, HasSubstr(kept));
  EXPECT_THAT(text, Not(HasSubstr("torchrun")));
  EXPECT_THAT(text, Not(HasSubstr("pytorch:2")));
  // The lines before and after those of the command are the same.
  const std::string before = kTrainJob;
  EXPECT_TRUE(before.starts_with(text.substr(0, text.find("    args:"))));
  EXPECT_EQ(text.substr(text.find("    resourcesPerNode")),
            before.substr(before.find("    resourcesPerNode")));
}

TEST(ConvertJobs, GiveTrainJobsAnotherRuntime) {
  Conversion with_runtime = conversion();
  with_runtime.runtime = "tessera";
  with_runtime.train_arguments = {"--model=org/m"};
  const std::string text = convert_jobs(kTrainJob, "job.yaml", with_runtime);
  const Value job = parse_manifests(text, "job").at(0).body;
  EXPECT_EQ(text_at(job, "spec.runtimeRef.name"), "tessera");
  EXPECT_EQ(list_at(job, "spec.trainer.args").back(), Value("--output_dir=/data/runs/llama"));
  EXPECT_THAT(text, HasSubstr("\"--termination_grace_s=100\"\n      - \"--under_controller\"\n"));
}

TEST(ConvertJobs, ReplaceTheContainersOfAPyTorchJob) {
  const std::string text = convert_jobs(kPyTorchJob, "job.yaml", conversion());
  const Value job = parse_manifests(text, "job").at(0).body;
  for (const char* replica : {"Master", "Worker"}) {
    const Value pod = *value_at(job, std::string("spec.pytorchReplicaSpecs.") + replica + ".template.spec");
    EXPECT_EQ(text_at(pod, "containers.0.image"), "tessera:1") << replica;
    EXPECT_THAT(list_at(pod, "containers.0.command"), ElementsAre("tessera"));
    EXPECT_THAT(list_at(pod, "containers.0.args"),
                ElementsAre("train", "--grace_period_s=10", "--model=org/m", "--output_dir=/mnt/out"))
        << "the operator numbers the ranks";
  }
  EXPECT_THAT(text, HasSubstr("            resources: {limits: {cpu: \"4\"}}\n"));
  EXPECT_THAT(text, HasSubstr("            image: example.com/logs:1\n"));
}

TEST(ConvertJobs, OtherDocumentsOfTheFileStay) {
  const std::string other = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n---\n";
  const std::string text = convert_jobs(other + kTrainJob, "job.yaml", conversion());
  EXPECT_EQ(text, other + convert_jobs(kTrainJob, "job.yaml", conversion()));
}

TEST(ConvertJobs, RefuseWhatTheyCannotChange) {
  const auto refuse = [](const std::string& text, std::vector<std::string> parts, Conversion with) {
    expect_error(ExitCode::kBadData, parts, [&] { convert_jobs(text, "job.yaml", with); });
  };
  refuse("kind: Job\n", {"job.yaml: expected a TrainJob or PyTorchJob, found none"}, conversion());
  refuse("kind: TrainJob\nmetadata: {name: a}\nspec: {}\n", {"TrainJob 'a' has no spec.trainer"},
         conversion());
  refuse("kind: TrainJob\nmetadata: {name: a}\nspec:\n  trainer: {image: x}\n",
         {"'a' has the place of its image in braces"}, conversion());
  const std::string job = kPyTorchJob;
  refuse(without_lines_between(job, "    Master:", "    Worker:"), {"PyTorchJob 'dist' has no Master"},
         conversion());
  refuse(job + "  nprocPerNode: \"4\"\n", {"has nprocPerNode 4: expected 1 or none"}, conversion());
  Conversion without_output = conversion();
  without_output.train_arguments = {};
  refuse(job, {"'dist' needs --output_dir"}, without_output);
  refuse("kind: [", {"job.yaml:1: not YAML"}, conversion());
}

}  // namespace
}  // namespace tessera
